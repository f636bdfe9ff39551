"""Questions to the three conversational APIs, and their answers in one form, whole or through the official clients."""

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import anthropic
from api_client import Answer, ApiClient

CHAT, MESSAGES, RESPONSES = "chat", "messages", "responses"
APIS = (CHAT, MESSAGES, RESPONSES)
PATHS = {CHAT: "/v1/chat/completions", MESSAGES: "/v1/messages", RESPONSES: "/v1/responses"}
QUESTION = "Which colour is the sky?"
# The fields of bodies that the official clients have an argument for.
FIELDS = {
    CHAT: {
        "model",
        "messages",
        "max_tokens",
        "temperature",
        "response_format",
        "tools",
        "tool_choice",
        "stop",
    },
    MESSAGES: {
        *("model", "messages", "max_tokens", "output_config", "tools", "tool_choice", "stop_sequences"),
    },
    RESPONSES: {"model", "input", "max_output_tokens", "temperature", "text", "tools", "tool_choice"},
}


@dataclass(frozen=True)
class Reply:
    """One answer."""

    content: str
    reasoning: str
    # Name and arguments of each call.
    calls: list[tuple[str, Any]]
    completion_tokens: int
    reasoning_tokens: int
    # As the API names it; and the stop string, where it is reported.
    ended: tuple[str | None, str | None]
    headers: Mapping[str, str] = field(default_factory=dict, compare=False)

    @property
    def ignored(self) -> str | None:
        return self.headers.get("x-fairlead-ignored")


def body_of(
    api: str,
    *,
    content: str = QUESTION,
    limit: int = 400,
    schema: Any = None,
    tools: Mapping[str, Any] | None = None,
    choice: str | None = None,
    parallel: bool = True,
    stop: Sequence[str] = (),
    **fields: Any,
) -> dict[str, Any]:
    """Return the body of a request. tools: the schemas of their arguments. choice: or the name of a tool.

    parallel: the answer may have several calls.
    """
    body: dict[str, Any] = {"model": "smollm2", "temperature": 0, **fields}
    turns = [{"role": "user", "content": content}]
    if api == RESPONSES:
        body |= {"input": content, "max_output_tokens": limit}
    else:
        body |= {"messages": turns, "max_tokens": limit}
    if schema is not None:
        body |= {
            CHAT: {
                "response_format": {"type": "json_schema", "json_schema": {"name": "form", "schema": schema}}
            },
            MESSAGES: {"output_config": {"format": {"type": "json_schema", "schema": schema}}},
            RESPONSES: {"text": {"format": {"type": "json_schema", "name": "form", "schema": schema}}},
        }[api]
    if tools is not None:
        body["tools"] = [tool_of(api, name, one) for name, one in tools.items()]
    if choice is not None:
        body["tool_choice"] = choice_of(api, choice)
    if not parallel and api == MESSAGES:
        body["tool_choice"]["disable_parallel_tool_use"] = True
    elif not parallel:
        body["parallel_tool_calls"] = False
    if stop:
        body["stop_sequences" if api == MESSAGES else "stop"] = list(stop)
    return body


def tool_of(api: str, name: str, schema: Any) -> dict[str, Any]:
    if api == MESSAGES:
        return {"name": name, "input_schema": schema}
    own = {"name": name, "parameters": schema}
    return {"type": "function", **own} if api == RESPONSES else {"type": "function", "function": own}


def choice_of(api: str, choice: str) -> Any:
    if api == MESSAGES:
        types = {"auto": "auto", "none": "none", "required": "any"}
        return {"type": types[choice]} if choice in types else {"type": "tool", "name": choice}
    if choice in ("auto", "none", "required"):
        return choice
    own = {"name": choice}
    return {"type": "function", **own} if api == RESPONSES else {"type": "function", "function": own}


def ask(server: ApiClient, api: str, **fields: Any) -> Reply:
    """Return the whole answer to a request. Fields are those of `body_of`."""
    answer = post(server, api, **fields)
    assert answer.status == 200, answer.body
    return reply_of(api, answer.json, answer.headers)


def post(server: ApiClient, api: str, **fields: Any) -> Answer:
    return server.post(PATHS[api], body_of(api, **fields))


def stream(server: ApiClient, api: str, **fields: Any) -> Reply:
    """Return the answer that the official client joins from a stream."""
    body = body_of(api, **fields)
    extra = {name: body.pop(name) for name in list(body) if name not in FIELDS[api]}
    with contextlib.ExitStack() as stack:
        if api == MESSAGES:
            claude = stack.enter_context(
                anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)
            )
            message = stack.enter_context(claude.messages.stream(**body, extra_body=extra))
            return reply_of(api, message.get_final_message().model_dump())
        client = stack.enter_context(server.client())
        if api == RESPONSES:
            events = list(stack.enter_context(client.responses.stream(**body, extra_body=extra)))
            return reply_of(api, events[-1].response.model_dump())  # type: ignore[union-attr]
        options = {"include_usage": True}
        chunks = client.chat.completions.create(**body, stream=True, stream_options=options, extra_body=extra)
        return reply_of(api, joined([chunk.model_dump() for chunk in chunks]))


def joined(chunks: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the completion that the chunks of a stream make."""
    message: dict[str, Any] = {"content": "", "reasoning": "", "tool_calls": []}
    ended: dict[str, Any] = {"finish_reason": None, "stop_reason": None}
    usage = None
    for chunk in chunks:
        usage = chunk.get("usage") or usage
        for choice in chunk["choices"]:
            delta = choice["delta"]
            message["content"] += delta.get("content") or ""
            message["reasoning"] += delta.get("reasoning") or ""
            for call in delta.get("tool_calls") or []:
                if call["index"] == len(message["tool_calls"]):
                    message["tool_calls"].append({"function": {"name": "", "arguments": ""}})
                function = message["tool_calls"][call["index"]]["function"]
                function["name"] += call["function"].get("name") or ""
                function["arguments"] += call["function"].get("arguments") or ""
            if choice.get("finish_reason"):
                ended = {name: choice.get(name) for name in ended}
    return {"choices": [{"message": message, **ended}], "usage": usage}


def reply_of(api: str, body: Any, headers: Mapping[str, str] | None = None) -> Reply:
    """Return an API's answer in the one form."""
    read = {CHAT: read_chat, MESSAGES: read_message, RESPONSES: read_response}[api]
    return read(body, headers or {})


def arguments_of(text: str) -> Any:
    """Return a call's arguments; those of a call that is cut as their text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def read_chat(body: Any, headers: Mapping[str, str]) -> Reply:
    (choice,) = body["choices"]
    message, usage = choice["message"], body["usage"]
    calls = [
        (call["function"]["name"], arguments_of(call["function"]["arguments"]))
        for call in message.get("tool_calls") or []
    ]
    return Reply(
        message["content"] or "",
        message.get("reasoning") or "",
        calls,
        usage["completion_tokens"],
        usage["completion_tokens_details"]["reasoning_tokens"],
        (choice["finish_reason"], choice.get("stop_reason")),
        headers,
    )


def read_message(body: Any, headers: Mapping[str, str]) -> Reply:
    blocks, usage = body["content"], body["usage"]
    return Reply(
        "".join(block["text"] for block in blocks if block["type"] == "text"),
        "".join(block["thinking"] for block in blocks if block["type"] == "thinking"),
        [(block["name"], block["input"]) for block in blocks if block["type"] == "tool_use"],
        usage["output_tokens"],
        usage["output_tokens_details"]["thinking_tokens"],
        (body["stop_reason"], body["stop_sequence"]),
        headers,
    )


def read_response(body: Any, headers: Mapping[str, str]) -> Reply:
    items, usage = body["output"], body["usage"]
    return Reply(
        "".join(part["text"] for item in items if item["type"] == "message" for part in item["content"]),
        "".join(
            part["text"] for item in items if item["type"] == "reasoning" for part in item["content"] or []
        ),
        [
            (item["name"], arguments_of(item["arguments"]))
            for item in items
            if item["type"] == "function_call"
        ],
        usage["output_tokens"],
        usage["output_tokens_details"]["reasoning_tokens"],
        (body["status"], (body["incomplete_details"] or {}).get("reason")),
        headers,
    )
