"""Requests in the form of Anthropic's coding agent: cached blocks, notes of the system, calls, and a screenshot."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from api_client import Answer
from local_server import LocalServer, serving

MESSAGES = "/v1/messages?beta=true"
CACHED = {"cache_control": {"type": "ephemeral"}}
HEADERS = {
    "Authorization": "Bearer none",
    "anthropic-version": "2023-06-01",
    "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14,context-management-2025-06-27",
    "x-app": "cli",
}


def tool(name: str, **properties: Any) -> dict[str, Any]:
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": properties,
        "required": list(properties)[:1],
        "additionalProperties": False,
    }
    return {"name": name, "description": f"Does what {name} does.", "input_schema": schema}


BASH = tool(
    "Bash",
    command={"type": "string", "description": "The command"},
    timeout={"type": "number"},
    run_in_background={"type": "boolean"},
)
READ = tool(
    "Read",
    file_path={"type": "string"},
    offset={"type": "integer", "minimum": 0, "maximum": 9007199254740991},
    limit={"type": "integer", "exclusiveMinimum": 0, "maximum": 9007199254740991},
)
REQUEST: dict[str, Any] = {
    "model": "smollm2",
    "max_tokens": 32000,
    "stream": True,
    "system": [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1; cc_entrypoint=sdk-cli;"},
        {"type": "text", "text": "You are an agent.", **CACHED},
        {"type": "text", "text": "\nYou help with software.\n", **CACHED},
    ],
    "tools": [BASH, READ],
    "thinking": {"type": "adaptive"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "output_config": {"effort": "high"},
    "metadata": {"user_id": json.dumps({"device_id": "1de6", "account_uuid": "", "session_id": "180f"})},
}
REMINDER = "<system-reminder>\nToday's date is 2026-11-26.\n</system-reminder>\n\n"
AGENTS_NOTE = {"role": "system", "content": "Available agent types for the Agent tool:\n- Explore: Searches."}
SCREENSHOT = {
    "type": "image",
    "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="},
}


class Agent:
    """A conversation as the agent keeps it; the model's part is given."""

    def __init__(self, server: LocalServer) -> None:
        self._server = server
        self._messages: list[dict[str, Any]] = []
        self.answers: list[Answer] = []
        self.prompts: list[str] = []

    def ask(self, text: str, answer: str) -> list[dict[str, Any]]:
        """Send a user's text; return the blocks of the answer."""
        if self._messages:
            self._messages.append({"role": "user", "content": text})
            return self._turn(answer)
        blocks = [{"type": "text", "text": REMINDER}, {"type": "text", "text": text, **CACHED}]
        self._messages += [{"role": "user", "content": blocks}, AGENTS_NOTE]
        return self._turn(answer)

    def return_result(self, call: dict[str, Any], content: Any, answer: str) -> list[dict[str, Any]]:
        """Send the result of a call; return the blocks of the answer."""
        result = {"tool_use_id": call["id"], "type": "tool_result", "content": content, **CACHED}
        self._messages.append({"role": "user", "content": [result]})
        return self._turn(answer)

    def _turn(self, text: str) -> list[dict[str, Any]]:
        with self._server.saying(text):
            answer = self._server.request("POST", MESSAGES, REQUEST | {"messages": self._messages}, HEADERS)
        assert answer.status == 200, answer.body
        self.answers.append(answer)
        tokenizer = self._server.host.model.tokenizer
        assert tokenizer is not None
        self.prompts.append(tokenizer.decode(self._server.core.requests[-1].token_ids()))
        blocks = blocks_of(answer)
        self._messages.append({"role": "assistant", "content": blocks})
        return blocks


def blocks_of(answer: Answer) -> list[dict[str, Any]]:
    """Return the blocks of a streamed answer as the agent stores them."""
    blocks: list[dict[str, Any]] = []
    arguments = ""
    for line in answer.body.decode().splitlines():
        if not line.startswith("data: "):
            continue
        event = json.loads(line.removeprefix("data: "))
        match event["type"]:
            case "content_block_start":
                blocks.append(event["content_block"])
                arguments = ""
            case "content_block_delta" if event["delta"]["type"] == "text_delta":
                blocks[-1]["text"] += event["delta"]["text"]
            case "content_block_delta":
                arguments += event["delta"]["partial_json"]
                blocks[-1]["input"] = json.loads(arguments) if arguments.endswith("}") else {}
    return blocks


def call(name: str, **arguments: str) -> str:
    """Return the text of a call in the model's form."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


@pytest.fixture(scope="module")
def large() -> Iterator[LocalServer]:
    """A server whose context has room for the agent's answers."""
    with serving('--hf-overrides={"max_position_embeddings": 65536}', "--max-model-len=65536") as server:
        yield server


def test_session_of_three_turns_with_calls_and_a_screenshot(large: LocalServer) -> None:
    agent = Agent(large)

    text, bash = agent.ask("List the files.", "I look.\n" + call("Bash", command="ls"))
    agent.return_result(bash, "a.png", "There is a picture.")
    (read,) = agent.ask("What does it show?", call("Read", file_path="/work/a.png"))
    agent.return_result(read, [SCREENSHOT], "I can't see it.")
    (failing,) = agent.ask("Remove it.", call("Bash", command="rm b.png"))
    (last,) = agent.return_result(failing, "No such file", "It is not there.")

    assert (text["text"].strip(), bash["name"], bash["input"]) == ("I look.", "Bash", {"command": "ls"})
    assert (read["name"], read["input"]) == ("Read", {"file_path": "/work/a.png"})
    assert last["text"] == "It is not there."
    ignored = [answer.headers.get("x-fairlead-ignored") for answer in agent.answers]
    assert ignored == [None] * 3 + ["messages.7.content.0.content.0 (image)"] * 3
    # The whole history is found in the prefix cache.
    for earlier, later in zip(agent.prompts, agent.prompts[1:], strict=False):
        assert later.startswith(earlier)
    prompt = agent.prompts[-1]
    assert "cc_version" not in prompt and "[image omitted]" in prompt
    assert "List the files.<|im_end|>\n<|im_start|>system\nAvailable agent types" in prompt


def test_tokens_of_a_request_are_counted(large: LocalServer) -> None:
    body = REQUEST | {"messages": [{"role": "user", "content": "Hi"}, AGENTS_NOTE]}
    counted = large.request("POST", "/v1/messages/count_tokens?beta=true", body, HEADERS)
    assert counted.status == 200
    with large.saying("Hi."):
        large.request("POST", MESSAGES, body, HEADERS)
    assert counted.json["input_tokens"] == len(large.core.requests[-1].token_ids())


def test_path_that_the_agent_probes_is_none_of_the_servers(large: LocalServer) -> None:
    assert large.request("HEAD", "/").status == 404
