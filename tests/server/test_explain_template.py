"""What `--explain-template` prints: the format of a model's answers, which --response-template takes."""

from pathlib import Path

import pytest
import yaml
from server.conversation.derivation.chat_templates import CASES
from server.conversation.recorded_answers import tokenizer_with

from engine_server.engine.conversation.chat_template import ChatTemplate
from engine_server.server.command import main
from engine_server.server.conversation.find_layout import find_layout


def explained(capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[list[str], str]:
    """Return the comments of the output, and all of it."""
    assert main([*flags, "--explain-template"]) == 0
    text = capsys.readouterr().out
    return [line.removeprefix("# ") for line in text.splitlines() if line.startswith("# ")], text


def test_printed_format_is_a_file_for_response_template(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    template: ChatTemplate = CASES["tags with types"].template
    tokenizer = tokenizer_with(())
    tokenizer.save_pretrained(tmp_path)
    file = tmp_path / "template.jinja"
    file.write_text(template.text)

    comments, text = explained(capsys, str(tmp_path), f"--chat-template={file}")

    assert comments[:3] == [
        "source: derived",
        "the chat template takes tools: yes",
        r"opening: '<|end|>\n<|start|>assistant\n'",
    ]
    tokenizer.chat_template = template.text
    derived = find_layout(tokenizer, None)
    file.write_text(text)
    tokenizer.chat_template = None
    given = find_layout(tokenizer, file)
    assert (given.call, given.data) == (derived.call, derived.data)


def test_reason_without_a_format_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tokenizer_with(()).save_pretrained(tmp_path)
    comments, text = explained(capsys, str(tmp_path), "--chat-template={{ tools }}{{ messages[0].content }}")
    assert "not used: derived: the template prints no calls" in comments
    assert yaml.safe_load(text) == {}
