"""Prompts of `LLM.chat`, which are those of chat completions for the same conversation."""

import json
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from engine.conversation.test_pictures import EITHER, PARTS, template
from fake_pictures import FakePictures, data_url
from server.conversation.derivation.published_templates import templates
from server.conversation.histories import TEMPLATES, WHOLE
from server.conversation.test_history import PUBLISHED, tokenizer_of
from tiers import tiered

from engine_server.config import ModelConfig
from engine_server.engine.conversation.chat import chat_prompts
from engine_server.engine.conversation.chat_template import ChatTemplate
from engine_server.engine.input.media_input import MediaInput
from engine_server.engine.input.processor import Processor
from engine_server.engine.input.tokenizer import backend_of
from engine_server.requests.errors import InvalidRequestError
from engine_server.requests.prompts import TokensPrompt
from engine_server.server.api.chat.request import ChatRequest
from engine_server.server.api.generation_request import parse_request
from engine_server.server.conversation.derivation.facts import facts_of
from engine_server.server.conversation.find_layout import find_layout
from engine_server.server.conversation.layout import Layout
from engine_server.server.generation.prompts import Chat, render_chat
from engine_server.server.http.errors import ApiError
from engine_server.server.settings import ApiSettings

pytestmark = pytest.mark.transformers

# By the fields of a request.
ARGUMENTS = {
    "tools": "tools",
    "chat_template": "template",
    "add_generation_prompt": "open_answer",
    "continue_final_message": "continue_last",
    "chat_template_kwargs": "variables",
}


@cache
def processor_of(text: str, takes_pictures: bool = False) -> Processor:
    tokenizer = tokenizer_of(text)
    tokenizer.add_tokens(["<image>"])
    config = ModelConfig(
        model="m", path="m", tokenizer="m", served_model_name=["m"], dtype="float32", max_model_len=65536,
        vocab_size=len(tokenizer), eos_token_ids=[1], seed=0,
    )  # fmt: skip
    processor = Processor(config, tokenizer)
    if takes_pictures:
        processor.media = MediaInput(backend_of(tokenizer), FakePictures("<image>"))
    return processor


@cache
def layout_of(text: str, takes_pictures: bool = False) -> Layout:
    tokenizer = processor_of(text).tokenizer
    facts = facts_of(ChatTemplate.of(tokenizer))
    layout = find_layout(tokenizer, None, facts)
    return replace(layout, pictures=facts.pictures) if takes_pictures else layout


def chat_of(body: dict[str, Any], layout: Layout) -> Chat:
    takes_pictures = layout.pictures is not None
    request = parse_request(ChatRequest, json.dumps(body).encode(), takes_pictures)
    (chat,) = request.source(ApiSettings(trust_request_chat_template=True), layout, 1024).conversations
    return chat


def offline(body: dict[str, Any], processor: Processor) -> TokensPrompt:
    options = {ARGUMENTS[name]: value for name, value in body.items() if name != "messages"}
    (prompt,) = chat_prompts(processor, body["messages"], **options)
    return prompt


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def system(content: str, role: str = "system") -> dict[str, Any]:
    return {"role": role, "content": content}


def answer(content: Any, *calls: dict[str, Any], **fields: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": content, **fields}
    return {**message, "tool_calls": list(calls)} if calls else message


def call(arguments: str, id: str = "call_1") -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": "f", "arguments": arguments}}


def result(content: Any, id: str = "call_1", **fields: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id, "content": content, **fields}


def asked(*messages: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"messages": list(messages), **fields}


def looped(*messages: dict[str, Any]) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"x": {"type": "string"}}}
    function = {"strict": True, "parameters": parameters, "description": "d", "name": "f", "title": None}
    return asked(user("A"), *messages, tools=[{"type": "function", "function": function}])


TEXT = {"type": "text", "text": "A"}
CONVERSATIONS = {
    "turns": asked(system("S"), user("A"), answer("B"), user("C")),
    "parts": asked(user([TEXT, {"type": "text", "text": "B"}])),
    "refusal": asked(user("A"), answer([{"type": "refusal", "refusal": "B"}]), user("C")),
    "names": asked({**user("A"), "name": "N"}),
    "unknown fields": asked({**user("A"), "weight": 1}),
    "two systems": asked(system("S"), system("T"), user("A")),
    "developer": asked(system("S"), system("D", "developer"), user("A")),
    "later system": asked(user("A"), answer("B"), user("C"), system("S"), user("D")),
    "turns of one role": asked(user("A"), user("B"), answer("C"), answer("D"), user("E")),
    "call": looped(answer(None, call('{"x": "1"}')), result("R")),
    "named result": looped(answer(None, call('{"x": "1"}')), result([TEXT, TEXT], name="g")),
    "call without an id": looped(
        answer("", {"function": {"name": "f", "arguments": "{}"}}), {"role": "tool", "content": "R"}
    ),
    "text and calls": looped(
        answer("B", call("{}"), call('{"x": "2"}', "call_2")), result("R"), result("Q", "call_2")
    ),
    "thought and call": looped(answer("B", call("{}"), reasoning="T"), result("R")),
    "thoughts": asked(user("A"), answer("B", reasoning_content="T", thinking="U", reasoning=""), user("C")),
    "cut arguments": looped(answer("", call('{"x": ')), result("R")),
    "arguments without an object": looped(answer("", call("[1]")), result("R")),
    "blank arguments": looped(answer("", call(" ")), result("R")),
    "tools": looped(),
    "tool with a name alone": asked(user("A"), tools=[{"type": "function", "function": {"name": "f"}}]),
    "no tools": asked(user("A"), tools=[]),
    "closed": asked(user("A"), add_generation_prompt=False),
    "variables": asked(user("A"), chat_template_kwargs={"enable_thinking": False, "extra": {"a": [1]}}),
}
CONTINUED = {
    "text": asked(user("A"), answer("B"), continue_final_message=True, add_generation_prompt=False),
    "parts": asked(user("A"), answer([TEXT]), continue_final_message=True, add_generation_prompt=False),
}
PLACES = {
    "variable of its own": WHOLE.replace("{{ '' if tools }}", "{{ xml_tools | tojson }}"),
    "field of the system": "{% for message in messages %}{{ message.tools }}{{ message.content }}{% endfor %}",
    "thoughts in tags": "{# <think> #}" + WHOLE.replace("({{", "<think>{{").replace("}}){%", "}}</think>{%"),
}


def check(text: str, body: dict[str, Any], takes_pictures: bool = False) -> None:
    processor, chat = processor_of(text, takes_pictures), chat_of(body, layout_of(text, takes_pictures))
    try:
        expected = render_chat(processor, chat, None, None, None).tokens
    except ApiError:
        with pytest.raises(InvalidRequestError, match="the chat template refuses the messages"):
            offline(body, processor)
        return
    prompt = offline(body, processor)
    assert prompt["prompt"] == expected["prompt"]
    if not takes_pictures:
        assert prompt["prompt_token_ids"] == expected["prompt_token_ids"]
    shown = [picture.picture.data for picture in prompt.get("pictures", ())]
    assert shown == [sent.picture().data for _, sent in chat.pictures]


@pytest.mark.parametrize("text", [*TEMPLATES.values(), *PLACES.values()], ids=[*TEMPLATES, *PLACES])
@pytest.mark.parametrize("body", CONVERSATIONS.values(), ids=CONVERSATIONS)
def test_prompt_is_that_of_chat_completions(text: str, body: dict[str, Any]) -> None:
    check(text, body)


@pytest.mark.parametrize("text", TEMPLATES.values(), ids=TEMPLATES)
@pytest.mark.parametrize("body", CONTINUED.values(), ids=CONTINUED)
def test_last_message_is_continued_as_in_chat_completions(text: str, body: dict[str, Any]) -> None:
    check(text, body)


@pytest.mark.parametrize(
    "name", tiered(PUBLISHED, "trl/gptoss", "trl/gemma4", "axolotl/mistral_v2v3", more=PUBLISHED)
)
def test_prompt_of_published_template_is_that_of_chat_completions(name: str) -> None:
    text = templates()[name].text
    # In what form a model writes calls that its template doesn't print is known to the server alone.
    prints_calls = layout_of(text).capabilities.calls
    for body in CONVERSATIONS.values():
        if prints_calls or not any("tool_calls" in message for message in body["messages"]):
            check(text, body)


@pytest.mark.parametrize("name", [name for name in TEMPLATES if name != "lists of parts"])
@pytest.mark.parametrize("own", ["no system", "one call"])
def test_given_template_is_rendered_as_that_of_a_request(name: str, own: str) -> None:
    for body in CONVERSATIONS.values():
        check(TEMPLATES[own], {**body, "chat_template": TEMPLATES[name]})


@pytest.mark.parametrize("text", ["{{ raise_exception('no') }}", "{% for %}", "{{ messages.append(1) }}"])
def test_template_that_refuses_every_conversation_is_an_error(text: str) -> None:
    check(text, CONVERSATIONS["turns"])
    check(WHOLE, {**CONVERSATIONS["turns"], "chat_template": text})


def picture(data: bytes) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": data_url(data)}}


@pytest.mark.parametrize(
    "text",
    [template(EITHER, EITHER), template(PARTS, PARTS), template(EITHER, "{{ m.content }}")],
    ids=["pictures in results", "lists alone", "pictures after results"],
)
def test_pictures_are_where_chat_completions_have_them(text: str) -> None:
    calls = [call("{}"), call("{}", "call_2")]
    results = [result([TEXT, picture(b"a")]), result([picture(b"bc")], "call_2")]
    check(
        text,
        looped(answer("", *calls), *results, answer("B"), user([picture(b"d"), TEXT, picture(b"e")])),
        True,
    )
    check(text, asked(user("<image>"), answer("<image>")), True)
