"""Our formats, each with an answer as a model of that format writes it."""

from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from engine_server.server.parsers.model_format import TEMPLATES, ModelFormat, load_template
from engine_server.server.parsers.tool_grammar import CallForm

FORMATS: dict[str, Any] = yaml.safe_load(
    files("engine_server.server.parsers").joinpath(TEMPLATES).read_text("utf-8")
)

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        },
    },
}
NOW = {"type": "function", "function": {"name": "now"}}
TOOLS = [WEATHER, NOW]
# The calls of every recorded answer, in a form in which the arguments are parsed.
CALLS = [("get_weather", {"city": 'Köln "Süd"\n', "days": 3}), ("now", {})]


@dataclass(frozen=True)
class Recording:
    """The text of an answer with reasoning, content and the two calls."""

    text: str
    prompt: str = ""
    reasoning: str = "I need the weather."
    content: str = "I'll look.\n\n  It takes a moment."


ARGUMENTS = '{"city": "Köln \\"Süd\\"\\n", "days": 3}'
CONTENT = "I'll look.\n\n  It takes a moment."
THOUGHT = "<think>\nI need the weather.\n</think>\n\n"
JSON_LIST = f'[{{"name": "get_weather", "arguments": {ARGUMENTS}}}, {{"name": "now", "arguments": {{}}}}]'

RECORDINGS = {
    "hermes": Recording(
        f'{THOUGHT}{CONTENT}\n<tool_call>\n{{"name": "get_weather", "arguments": {ARGUMENTS}}}\n</tool_call>\n'
        '<tool_call>\n{"arguments": {}, "name": "now"}\n</tool_call>'
    ),
    "qwen3_coder": Recording(
        "I need the weather.\n</think>\n\n"
        f"{CONTENT}\n\n<tool_call>\n<function=get_weather>\n"
        '<parameter=city>\nKöln "Süd"\n\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>\n'
        "<tool_call>\n<function=now>\n</function>\n</tool_call>",
        prompt="<|im_start|>user\n<think> is a tag<|im_end|>\n<|im_start|>assistant\n<think>\n",
    ),
    "deepseek": Recording(
        f"I need the weather.\n</think>\n\n{CONTENT}<｜tool▁calls▁begin｜>"
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{ARGUMENTS}\n```<｜tool▁call▁end｜>\n"
        "<｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        prompt="<｜User｜>Weather?<｜Assistant｜><think>\n",
    ),
    "mistral": Recording(
        f"[THINK]I need the weather.[/THINK]{CONTENT}[TOOL_CALLS]get_weather[ARGS]{ARGUMENTS}"
        "[TOOL_CALLS]now[CALL_ID]abcdefghi[ARGS]{}"
    ),
    "mistral_list": Recording(f"{CONTENT}[TOOL_CALLS] {JSON_LIST}</s>", reasoning=""),
    "granite": Recording(f"{THOUGHT}{CONTENT}<|tool_call|>{JSON_LIST}"),
    "gemma4": Recording(
        f"<|channel>thought\nI need the weather.<channel|>{CONTENT}"
        '<|tool_call>call:get_weather{city:<|"|>Köln "Süd"\n<|"|>,days:3}<tool_call|>'
        "<|tool_call>call:now{}<tool_call|>"
    ),
    "gpt_oss": Recording(
        "<|channel|>analysis<|message|>I need the weather.<|end|>"
        f"<|start|>assistant<|channel|>commentary<|message|>{CONTENT}<|end|>"
        "<|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"
        f"{ARGUMENTS}<|call|>"
        "<|start|>assistant to=functions.now<|channel|>commentary json<|message|>{}<|call|>"
    ),
    "llama3": Recording(
        f'{{"type": "function", "name": "get_weather", "parameters": {ARGUMENTS}}}; '
        '{"name": "now", "parameters": {}}',
        reasoning="",
        content="",
    ),
}


@cache
def our_format(name: str) -> ModelFormat:
    found = FORMATS[name]
    call = CallForm(**found["call"]) if "call" in found else None
    short_ids = found.get("call_id") == "short"
    return ModelFormat(name, load_template(name, found["template"]), call, short_ids)
