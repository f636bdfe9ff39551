"""Reasoning in the messages and responses APIs, with a model whose answers are read as those of a reasoning one."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from local_server import LocalServer, serving

MODEL = "smollm2"
QUESTION = {"role": "user", "content": "What is the capital of France?"}
TEMPLATE = {
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "reasoning_content": {"open": "<think>", "close": "</think>"},
        "content": {"close": ["<|im_end|>"]},
    },
}
# The answer continues it, so that all of it is reasoning.
STARTED = "<think>The capital of"


@pytest.fixture(scope="module")
def reasoning_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    file: Path = tmp_path_factory.mktemp("template") / "response_template.json"
    file.write_text(json.dumps(TEMPLATE))
    with serving(f"--response-template={file}") as server, server.saying(" France is Paris."):
        yield server


def test_reasoning_is_a_thinking_block(reasoning_server: LocalServer) -> None:
    client = anthropic.Anthropic(base_url=reasoning_server.url, api_key="none", max_retries=0)
    request: dict[str, Any] = {
        "model": MODEL,
        "messages": [QUESTION, {"role": "assistant", "content": STARTED}],
        "max_tokens": 4,
        "extra_body": {"temperature": 0},
    }
    whole = client.messages.create(**request)
    (block,) = whole.content
    assert block.type == "thinking"
    assert block.thinking.strip() == "France is Paris." and block.signature
    assert whole.stop_reason == "max_tokens"
    assert whole.usage.output_tokens_details and whole.usage.output_tokens_details.thinking_tokens == 4
    with client.messages.stream(**request) as stream:
        thinking = "".join(event.thinking for event in stream if event.type == "thinking")
        streamed = stream.get_final_message()
    assert thinking == block.thinking
    (same,) = streamed.content
    assert same.type == "thinking" and same.thinking == block.thinking and same.signature
    omitted = client.messages.create(**request, thinking={"type": "adaptive", "display": "omitted"})
    assert omitted.content[0].type == "thinking" and omitted.content[0].thinking == ""


def test_reasoning_is_an_item(reasoning_server: LocalServer) -> None:
    client = reasoning_server.client()
    assert isinstance(client, openai.OpenAI)
    started = {"type": "message", "role": "assistant", "content": STARTED, "status": "incomplete"}
    request: dict[str, Any] = {
        "model": MODEL,
        "input": [QUESTION, started],
        "max_output_tokens": 4,
        "temperature": 0,
    }
    whole = client.responses.create(**request)
    (item,) = whole.output
    assert item.type == "reasoning" and item.content
    assert item.content[0].text.strip() == "France is Paris."
    assert whole.usage and whole.usage.output_tokens_details.reasoning_tokens == 4
    events = list(client.responses.create(**request, stream=True))
    deltas = [event.delta for event in events if event.type == "response.reasoning_text.delta"]
    assert "".join(deltas) == item.content[0].text
    last = events[-1]
    assert last.type == "response.incomplete"
    (same,) = last.response.output
    assert same.type == "reasoning" and same.content == item.content
