"""Our formats, each with an answer as a model of that format writes it."""

import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import yaml
from server.conversation.derivation.chat_templates import CASES
from small_tokenizers import byte_level
from transformers import PreTrainedTokenizerFast

from engine_server.server.conversation.derivation.derive import Derived, derive
from engine_server.server.conversation.find_layout import find_layout
from engine_server.server.conversation.formats import FORMATS as FORMATS_FILE
from engine_server.server.conversation.layout import Layout
from engine_server.server.conversation.reader import ReadAnswer
from engine_server.server.conversation.response_template import strings
from engine_server.server.generation.answer_start import NO_START, AnswerStart
from engine_server.structured.schemas.arguments import ArgumentTypes

FORMATS: dict[str, Any] = yaml.safe_load(
    files("engine_server.server.conversation").joinpath(FORMATS_FILE).read_text("utf-8")
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
    start: AnswerStart = NO_START
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
        start=AnswerStart("<|im_start|>assistant\n<think>\n"),
    ),
    "deepseek": Recording(
        f"I need the weather.\n</think>\n\n{CONTENT}<｜tool▁calls▁begin｜>"
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{ARGUMENTS}\n```<｜tool▁call▁end｜>\n"
        "<｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        start=AnswerStart("<｜Assistant｜><think>\n"),
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


RECORDINGS["glm"] = Recording(
    f'{THOUGHT}{CONTENT}\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Köln "Süd"\n</arg_value>\n'
    "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>\n<tool_call>now\n</tool_call>"
)
RECORDINGS["cohere"] = Recording(
    f"<|START_THINKING|>I need the weather.<|END_THINKING|>{CONTENT}<|START_ACTION|>["
    f'{{"tool_call_id": "0", "tool_name": "get_weather", "parameters": {ARGUMENTS}}},\n'
    '{"tool_call_id": "1", "tool_name": "now", "parameters": {}}]<|END_ACTION|>'
)
RECORDINGS["phi4_mini"] = Recording(f"{CONTENT}<|tool_call|>{JSON_LIST}<|/tool_call|>", reasoning="")
RECORDINGS["phi4_functools"] = Recording(f"{CONTENT}functools{JSON_LIST}<|end|>", reasoning="")
RECORDINGS["granite_response"] = Recording(
    f"{THOUGHT}<response>{CONTENT}</response><|tool_call|>{JSON_LIST}<|end_of_text|>"
)
RECORDINGS["function_gemma"] = Recording(
    f'{CONTENT}<start_function_call>call:get_weather{{city:<escape>Köln "Süd"\n<escape>,days:3}}'
    "<end_function_call><start_function_call>call:now{}<end_function_call><start_function_response>",
    reasoning="",
)
RECORDINGS["muse_glimmer"] = Recording(
    f" to=self<|message|>I need the weather.<|eom|><|start|>assistant to=user<|message|>{CONTENT}<|eom|>"
    '<|start|>assistant to=get_weather<|message|><atem:function_calls>\n<atem:invoke name="get_weather">\n'
    '<atem:parameter name="city">Köln "Süd"\n</atem:parameter>\n<atem:parameter name="days">3</atem:parameter>\n'
    "</atem:invoke>\n</atem:function_calls><|eom|><|start|>assistant to=now<|message|><atem:function_calls>\n"
    '<atem:invoke name="now">\n</atem:invoke>\n</atem:function_calls><|eot|>'
)
RECORDINGS["kimi_k3"] = Recording(
    f"I need the weather.<|close|>think<|sep|><|open|>response<|sep|>{CONTENT}<|close|>response<|sep|>"
    '<|open|>tools<|sep|><|open|>call tool="get_weather" index="1"<|sep|>'
    '<|open|>argument key="city" type="string"<|sep|>Köln "Süd"\n<|close|>argument<|sep|>'
    '<|open|>argument key="days" type="number"<|sep|>3<|close|>argument<|sep|><|close|>call<|sep|>'
    '<|open|>call tool="now" index="2"<|sep|><|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|>',
    start=AnswerStart('<|open|>message role="assistant"<|sep|><|open|>think<|sep|>'),
)
RECORDINGS["lfm2"] = Recording(
    f"{THOUGHT}{CONTENT}<|tool_call_start|>"
    "[get_weather(city='Köln \"S\\xfcd\"\\n', days=3), now()]<|tool_call_end|>"
)
RECORDINGS["olmo3"] = Recording(
    f"{THOUGHT}{CONTENT}<function_calls>"
    'get_weather(city="K\\u00f6ln \\"Süd\\"\\n", days=3)\nnow()</function_calls>'
)
RECORDINGS["llama4_python"] = Recording(
    "<|python_start|>[get_weather(city = 'Köln \"Süd\"\\12', days=0x3,), now()]<|python_end|>",
    reasoning="",
    content="",
)
RECORDINGS["llama4"] = Recording(
    f"<|python_start|>{CONTENT}<|python_end|>"
    f'{{"name": "get_weather", "parameters": {ARGUMENTS}}}{{"name": "now", "parameters": {{}}}}',
    reasoning="",
)
MARK = re.compile(r"<[^<>\s()\[\]]+>|\[/?[A-Z_]+\]")


def marks_of(name: str) -> list[str]:
    """Return the marks in the delimiters of a format."""
    entry = FORMATS[name] if name in FORMATS else derived_entry(name)
    delimiters = {key: value for key, value in entry.items() if key != "call"}
    texts = [text.replace("\\", "").replace("?P<", "") for text in strings(delimiters)]
    return sorted({mark for text in texts for mark in MARK.findall(text)})


@cache
def derived_entry(name: str) -> dict[str, Any]:
    """Return the format that is derived from one of our chat templates."""
    found = derive(CASES[name].template, 3)
    assert isinstance(found, Derived)
    return found.entry


@cache
def tokenizer_with(marks: tuple[str, ...]) -> Any:
    """Return a tokenizer for which these texts are tokens."""
    return PreTrainedTokenizerFast(tokenizer_object=byte_level(marks), eos_token="</s>")


@cache
def our_layout(name: str, tokens: bool = False) -> Layout:
    """Return the layout of one of our formats, or a derived one. tokens: each of its marks is a token."""
    return layout_with(tokenizer_with(tuple(marks_of(name)) if tokens else ()), name)


def layout_with(tokenizer: Any, name: str) -> Layout:
    """Return the layout of one of our formats, or a derived one, for a tokenizer, which gets a chat template of it."""
    if name in CASES:
        tokenizer.chat_template = CASES[name].template.text
    else:
        found = FORMATS[name]
        marks = [*found["marks"], found.get("reasoning_mark", "")]
        tokenizer.chat_template = f"{{{{ tools }}}}{{# {' '.join(marks)} #}}"
    layout = find_layout(tokenizer, None)
    assert layout.name == (CASES[name].written or "derived" if name in CASES else name)
    return layout


def reading(
    name: str,
    start: AnswerStart = NO_START,
    tools: list[dict[str, Any]] | None = TOOLS,
    tokens: bool = False,
    answer_id: str = "chatcmpl-1",
    **options: Any,
) -> ReadAnswer:
    """Return the reading of answers in a format."""
    layout = our_layout(name, tokens)
    properties = {
        tool["function"]["name"]: ArgumentTypes(tool["function"].get("parameters")) for tool in tools or ()
    }
    return ReadAnswer(
        regions=layout.regions(tools is not None),
        answer_id=answer_id,
        start=start,
        properties=properties,
        call_ids=layout.call_id,
        **options,
    )
