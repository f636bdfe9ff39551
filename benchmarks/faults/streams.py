"""The requests that are repeated, and the part of their streams that must not depend on the engines."""

import json
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from benchmarks.faults.site import NAME

SCHEMA = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "green", "blue"]}, "count": {"type": "integer"}},
    "required": ["colour", "count"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "paint", "parameters": SCHEMA}}
PROMPTS = ("Name three colours.", "Tell a story about a ship.", "What is a lighthouse for?")


@dataclass(frozen=True)
class Kind:
    """A request that always has the same answer."""

    name: str
    path: str
    body: dict[str, Any]


def kinds(tokens: int) -> list[Kind]:
    """Return requests of each API, greedy and with seeds, with tools and schemas."""
    found = []
    for number, prompt in enumerate(PROMPTS):
        messages = [{"role": "user", "content": prompt}]
        chat = {"messages": messages, "max_tokens": tokens}
        schema = {"type": "json_schema", "json_schema": {"name": "paint", "schema": SCHEMA}}
        tools = {"tools": [TOOL], "tool_choice": "required"}
        anthropic = {"messages": messages, "max_tokens": tokens}
        seeded = {"temperature": 1, "seed": 100 + number}
        for name, path, body in (
            ("chat", "/v1/chat/completions", chat | {"temperature": 0}),
            ("chat, seeded", "/v1/chat/completions", chat | seeded),
            ("chat, schema", "/v1/chat/completions", chat | seeded | {"response_format": schema}),
            ("chat, tools", "/v1/chat/completions", chat | seeded | tools),
            ("completion", "/v1/completions", {"prompt": prompt, "max_tokens": tokens} | seeded),
            ("messages", "/v1/messages", anthropic | {"temperature": 0}),
            (
                "responses",
                "/v1/responses",
                {"input": prompt, "max_output_tokens": tokens, "temperature": 0},
            ),
        ):
            found.append(Kind(f"{name} {number + 1}", path, {"model": NAME, "stream": True} | body))
    return found


@dataclass
class Text:
    """The part of a stream that must not depend on the engines."""

    id: str = ""
    text: str = ""
    finish: str = ""
    fingerprints: set[str] = field(default_factory=set)
    errors: list[str] = field(default_factory=list)

    def take(self, data: Any) -> None:
        """Add an event of any of the APIs."""
        kind = data.get("type", "")
        if "error" in data or kind in ("error", "response.failed"):
            self.errors.append(json.dumps(data)[:300])
            return
        if found := data.get("id") or data.get("message", {}).get("id") or data.get("response", {}).get("id"):
            if self.id not in ("", found):
                self.errors.append(f"the id changes from {self.id} to {found}")
            self.id = found
        if "system_fingerprint" in data:
            self.fingerprints.add(data["system_fingerprint"])
        for choice in data.get("choices", ()):
            delta = choice.get("delta", choice)
            calls = "".join(call["function"].get("arguments", "") for call in delta.get("tool_calls") or ())
            self.text += (delta.get("content") or delta.get("text") or "") + calls
            self.finish = choice.get("finish_reason") or self.finish
        if kind == "content_block_delta":
            delta = data["delta"]
            self.text += delta.get("text", "") + delta.get("partial_json", "")
        elif kind == "message_delta":
            self.finish = data["delta"]["stop_reason"]
        elif kind == "response.output_text.delta":
            self.text += data["delta"]
        elif kind in ("response.completed", "response.incomplete"):
            self.finish = kind
            whole = "".join(
                part["text"] for item in data["response"]["output"] for part in item.get("content", ())
            )
            if whole != self.text:
                self.errors.append(f"the deltas are {self.text!r}, and the whole is {whole!r}")


async def stream(session: aiohttp.ClientSession, url: str, kind: Kind) -> Text:
    """Return what a stream says; its failures are among the errors."""
    text = Text()
    numbers: list[int] = []
    try:
        async with session.post(url + kind.path, json=kind.body) as response:
            if response.status != 200:
                text.errors.append(f"status {response.status}: {(await response.text())[:300]}")
                return text
            async for line in response.content:
                if line.startswith(b":") and b"fairlead" in line:
                    text.errors.append(f"a report is forwarded: {line!r}")
                if line.startswith(b"data: ") and line != b"data: [DONE]\n":
                    data = json.loads(line.removeprefix(b"data: "))
                    text.take(data)
                    numbers += [data["sequence_number"]] if "sequence_number" in data else []
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        text.errors.append(repr(error))
    if numbers != list(range(len(numbers))):
        text.errors.append(f"the events are numbered {numbers}")
    if not text.finish and not text.errors:
        text.errors.append(f"the stream ends without a finish reason after {text.text!r}")
    return text
