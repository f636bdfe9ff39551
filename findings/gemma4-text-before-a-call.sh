#!/usr/bin/env bash
# Packages: trl 1.16.0 (its copies of Gemma 4's chat template: gemma4.jinja, and gemma4_v3.jinja to gemma4_v5.jinja),
# transformers 5.23.0, jinja2 3.1.6. Behaviour: in a history in OpenAI's form, where an assistant's turn has text and a
# tool call, and the tool's result follows, the template prints the text after the result, ends the turn with it, and
# then adds no opening for the answer although add_generation_prompt is true. So the model is asked to go on after the
# end of its own turn. Without the text the turn stays open after the result. Seen with these four copies;
# gemma4_v2.jinja prints the text between the call and the result, and opens a turn.
# Fails if one of them prints the text before the call, or leaves the turn open after the result.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet transformers==5.23.0 jinja2==3.1.6
"$folder/venv/bin/pip" install --quiet --no-deps trl==1.16.0
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
import sys
from importlib.metadata import files, version

from transformers.utils.chat_template_utils import render_jinja_template

CALL = {"id": "call_1", "type": "function", "function": {"name": "measure", "arguments": {"unit": "metre"}}}
TOOL = {
    "type": "function",
    "function": {
        "name": "measure",
        "description": "Measures a room.",
        "parameters": {"type": "object", "properties": {"unit": {"type": "string"}}},
    },
}


def prompt(template, text):
    history = [
        {"role": "user", "content": "How long is the room?"},
        {"role": "assistant", "content": text, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "call_1", "name": "measure", "content": "seven"},
    ]
    rendered, _ = render_jinja_template(
        conversations=[history], tools=[TOOL], chat_template=template, add_generation_prompt=True, bos_token="<bos>"
    )
    return rendered[0].partition("How long is the room?")[2]


print("trl", version("trl"), "transformers", version("transformers"))
names = [f"gemma4{edition}.jinja" for edition in ("", "_v3", "_v4", "_v5")]
copies = [file for file in files("trl") if file.name in names]
as_described = len(copies) == len(names)
for file in copies:
    template = file.locate().read_text("utf-8")
    beside, alone = prompt(template, "Let me look."), prompt(template, "")
    print(file.name, repr(beside))
    ends_turn = beside.endswith("Let me look.<turn|>\n")
    as_described &= beside.index("Let me look.") > beside.index("seven") and ends_turn
    as_described &= not alone.endswith("<turn|>\n")
sys.exit(0 if as_described else 1)
PYTHON
