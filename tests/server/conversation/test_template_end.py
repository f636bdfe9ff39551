"""The token with which a chat template ends an answer, as a server adds it to the ends of a model."""

import logging
from pathlib import Path

import pytest
from local_server import serving
from server.conversation.recorded_answers import tokenizer_with

from engine_server.server.conversation.derivation.facts import facts_of
from engine_server.server.loaded_model import TemplateReader
from engine_server.server.settings import ApiSettings

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# Thoughts of earlier turns are not printed.
CHANNELS = (
    "{{ tools or '' }}{% for m in messages %}"
    "<|start|>{{ m.role }}{% if m.role == 'assistant' %}<|channel|>final{% endif %}<|message|>"
    "{{ m.content }}END{% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
MARKS = ("<|im_start|>", "<|im_end|>", "<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>")


@pytest.mark.parametrize(
    ("template", "ends", "found"),
    [
        (CHATML, ["</s>"], "<|im_end|>"),
        (CHATML, ["</s>", "<|im_end|>"], None),
        (CHATML.replace("<|im_end|>", "<|im_end|></s>"), ["</s>"], None),
        (CHATML.replace("<|im_end|>", ""), ["</s>"], None),
        (CHANNELS.replace("END", "<|end|>"), ["</s>"], None),
        (CHANNELS.replace("END", "<|return|>"), ["</s>"], "<|return|>"),
        ("{{ raise_exception('no') }}", ["</s>"], None),
        ("", ["</s>"], None),
    ],
)
def test_end_of_the_template_is_added_unless_it_is_known_or_ends_parts_of_answers(
    template: str, ends: list[str], found: str | None
) -> None:
    tokenizer = tokenizer_with(MARKS)
    reader = TemplateReader(ApiSettings(), template, facts_of)
    token_id = reader.end(tokenizer, tokenizer.convert_tokens_to_ids(ends))
    assert (None if token_id is None else tokenizer.convert_ids_to_tokens(token_id)) == found


def test_server_takes_the_end_of_its_chat_template(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "template.jinja"
    file.write_text(CHATML.replace("<|im_end|>", "<file_sep>"))
    with caplog.at_level(logging.INFO), serving(f"--chat-template={file}") as server:
        ends = server.host.model.engine.model_config.eos_token_ids
        (line,) = [line for line in server.lines if line.startswith("answers end at: ")]
    assert {0, 2, 5} <= set(ends)
    assert "<file_sep> 5 (" in line and "<|im_end|> 2 (" in line


def test_server_with_an_override_ends_answers_there_alone() -> None:
    with serving('--override-generation-config={"eos_token_id": [5, 0]}') as server:
        assert server.host.model.engine.model_config.eos_token_ids == [5, 0]
