"""Whole and streamed answers agree, whatever the request asks for."""

from typing import Any

import pytest
from streams import comparable, events, joined

pytestmark = pytest.mark.thorough

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
QUESTION = [{"role": "user", "content": "Say 你好 and 🎉 twice."}]
CONTINUED = [*QUESTION, {"role": "assistant", "content": "The capital of"}]
PROMPT = "The capital of 法国 is"


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (COMPLETIONS, {"prompt": PROMPT}),
        (COMPLETIONS, {"prompt": [PROMPT, "One, two,"]}),
        (COMPLETIONS, {"prompt": [504, 3575, 282, 4649, 314]}),
        (COMPLETIONS, {"prompt": [[504, 3575, 282, 4649, 314], [504, 3575]], "return_token_ids": True}),
        (COMPLETIONS, {"prompt": PROMPT, "echo": True}),
        (COMPLETIONS, {"prompt": PROMPT, "echo": True, "logprobs": 2}),
        (COMPLETIONS, {"prompt": PROMPT, "echo": True, "logprobs": 2, "max_tokens": 0}),
        (COMPLETIONS, {"prompt": [PROMPT, "One"], "echo": True, "logprobs": 1, "n": 2, "temperature": 1}),
        (COMPLETIONS, {"prompt": PROMPT, "logprobs": 0}),
        (COMPLETIONS, {"prompt": PROMPT, "logprobs": 3, "return_tokens_as_token_ids": True}),
        (COMPLETIONS, {"prompt": PROMPT, "n": 3, "temperature": 1.0}),
        (COMPLETIONS, {"prompt": PROMPT, "n": 2, "best_of": 3, "temperature": 1.0}),
        (COMPLETIONS, {"prompt": PROMPT, "use_beam_search": True, "n": 3, "logprobs": 2}),
        (COMPLETIONS, {"prompt": PROMPT, "use_beam_search": True, "n": 2, "echo": True}),
        (COMPLETIONS, {"prompt": PROMPT, "truncate_prompt_tokens": 3, "echo": True}),
        (COMPLETIONS, {"prompt": PROMPT, "stop": ["a", "."], "include_stop_str_in_output": True}),
        (COMPLETIONS, {"prompt": PROMPT, "stop_token_ids": [30]}),
        (COMPLETIONS, {"prompt": PROMPT, "detokenize": False, "return_token_ids": True}),
        (COMPLETIONS, {"prompt": PROMPT, "allowed_token_ids": [30, 7042, 198]}),
        (CHAT, {"messages": QUESTION}),
        (CHAT, {"messages": QUESTION, "logprobs": True, "top_logprobs": 2}),
        (CHAT, {"messages": QUESTION, "logprobs": True, "return_tokens_as_token_ids": True}),
        (CHAT, {"messages": QUESTION, "return_token_ids": True, "return_prompt_text": True}),
        (CHAT, {"messages": QUESTION, "n": 2, "temperature": 1.0, "return_token_ids": True}),
        (CHAT, {"messages": QUESTION, "use_beam_search": True, "n": 2}),
        (CHAT, {"messages": CONTINUED, "continue_final_message": True, "echo": True}),
        (CHAT, {"messages": QUESTION, "add_generation_prompt": False, "echo": True}),
        (CHAT, {"messages": QUESTION, "stop": ["i"]}),
        (CHAT, {"messages": QUESTION, "detokenize": False, "return_token_ids": True}),
    ],
)
def test_streamed_answer_equals_the_whole_one(server: Any, path: str, fields: dict[str, Any]) -> None:
    request = {"model": "smollm2", "max_tokens": 8, "temperature": 0, "seed": 7} | fields
    whole = server.post(path, request)
    assert whole.status == 200, whole.body
    options = {"stream": True, "stream_options": {"include_usage": True}}
    chunks = events(server.post(path, request | options).body)
    assert comparable(joined(chunks)) == comparable(whole.json)


@pytest.mark.parametrize(
    ("path", "fields"), [(COMPLETIONS, {"prompt": PROMPT}), (CHAT, {"messages": QUESTION})]
)
def test_continuous_usage_counts_the_tokens_so_far(server: Any, path: str, fields: dict[str, Any]) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    request = {"model": "smollm2", "max_tokens": 30, "ignore_eos": True, "stream": True} | fields
    chunks = events(server.post(path, request | {"stream_options": options}).body)
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts) and counts[-1] == 30 and len(set(counts)) > 2
    assert all(
        chunk["usage"]["total_tokens"] - chunk["usage"]["completion_tokens"]
        == chunk["usage"]["prompt_tokens"]
        for chunk in chunks
    )
    alone = server.post(path, request | {"stream_options": {"continuous_usage_stats": True}})
    assert not any("usage" in chunk for chunk in events(alone.body))
