"""/v1/responses, as OpenAI's own client sees it."""

from collections.abc import Iterator
from typing import Any

import openai
import pytest

MODEL = "smollm2"
QUESTION = "What is the capital of France?"
GREEDY: dict[str, Any] = {"model": MODEL, "input": QUESTION, "temperature": 0, "max_output_tokens": 20}
ANSWER = "The capital of France is Paris."


@pytest.fixture
def async_client(tiered_server: Any) -> Iterator[openai.AsyncOpenAI]:
    with tiered_server.saying(ANSWER):
        url = f"{tiered_server.url}/v1"
        yield openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=60)


def test_model_answers_with_message_and_usage(server: Any) -> None:
    with server.client() as client:
        response = client.responses.create(**GREEDY, metadata={"run": "7"}, user="me")
    assert response.id.startswith("resp_")
    assert (response.object, response.status, response.model) == ("response", "completed", MODEL)
    assert response.output_text == ANSWER
    (message,) = response.output
    assert message.type == "message" and message.status == "completed"
    assert response.usage
    usage = response.usage
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (37, 8, 45)
    assert response.error is None and response.incomplete_details is None
    assert (response.temperature, response.top_p, response.max_output_tokens) == (0, 1, 20)
    assert (response.metadata, response.user) == ({"run": "7"}, "me")
    assert response.model_extra and response.model_extra["store"] is False


def test_streamed_response_equals_the_whole_response(
    answering_client: openai.OpenAI, tiered_server: Any
) -> None:
    request = GREEDY | {"input": "What is the capital of Japan (日本)?", "max_output_tokens": 60}
    with tiered_server.saying("The capital of Japan (日本) is Tokyo (東京)."):
        whole = answering_client.responses.create(**request)
        with answering_client.responses.stream(**request) as stream:
            text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
            streamed = stream.get_final_response()
    assert text == whole.output_text == streamed.output_text
    assert streamed.usage and whole.usage
    assert streamed.usage.input_tokens == whole.usage.input_tokens
    assert streamed.usage.output_tokens == whole.usage.output_tokens
    assert streamed.status == whole.status


def test_stream_has_all_events_in_order_and_numbered(answering_client: openai.OpenAI) -> None:
    events = list(answering_client.responses.create(**GREEDY, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    deltas = kinds.count("response.output_text.delta")
    assert deltas >= 2
    assert kinds == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        *["response.output_text.delta"] * deltas,
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]


async def test_async_client_gets_the_same(async_client: openai.AsyncOpenAI) -> None:
    async with async_client as client:
        response = await client.responses.create(**GREEDY)
        async with client.responses.stream(**GREEDY) as stream:
            streamed = await stream.get_final_response()
    assert response.output_text == streamed.output_text == ANSWER


@pytest.mark.parametrize("stream", [False, True])
def test_answer_that_reaches_the_limit_is_incomplete(answering_client: openai.OpenAI, stream: bool) -> None:
    request = GREEDY | {"max_output_tokens": 3}
    if stream:
        *_, last = answering_client.responses.create(**request, stream=True)
        assert last.type == "response.incomplete"
        response = last.response
    else:
        response = answering_client.responses.create(**request)
    assert response.status == "incomplete"
    assert response.incomplete_details and response.incomplete_details.reason == "max_output_tokens"
    assert response.output_text == "The capital of"


def test_answer_is_the_next_requests_input(answering_client: openai.OpenAI) -> None:
    """The way of a conversation without stored answers."""
    turns: list[Any] = [{"role": "user", "content": QUESTION}]
    first = answering_client.responses.create(**GREEDY | {"input": turns})
    turns += [*first.output, {"role": "user", "content": "And of Italy?"}]
    second = answering_client.responses.create(**GREEDY | {"input": turns})
    messages = [
        {"role": "user", "content": QUESTION},
        {"role": "assistant", "content": ANSWER},
        {"role": "user", "content": "And of Italy?"},
    ]
    same = answering_client.chat.completions.create(
        model=MODEL, messages=messages, temperature=0, max_tokens=20
    )  # type: ignore[arg-type]
    assert second.output_text == same.choices[0].message.content
    assert second.usage and same.usage
    assert second.usage.input_tokens == same.usage.prompt_tokens


def test_instructions_are_the_system_message(answering_client: openai.OpenAI) -> None:
    response = answering_client.responses.create(**GREEDY, instructions="Be brief.")
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": QUESTION}]
    same = answering_client.chat.completions.create(
        model=MODEL, messages=messages, temperature=0, max_tokens=20
    )  # type: ignore[arg-type]
    assert response.output_text == same.choices[0].message.content
    assert response.instructions == "Be brief."


def test_incomplete_message_at_the_end_is_continued(
    answering_client: openai.OpenAI, tiered_server: Any
) -> None:
    started = {"type": "message", "role": "assistant", "content": "The capital of", "status": "incomplete"}
    request = GREEDY | {"input": [{"role": "user", "content": QUESTION}, started]}
    with tiered_server.saying(" France is Paris."):
        response = answering_client.responses.create(**request)
    assert response.output_text == " France is Paris."


@pytest.mark.parametrize("stream", [False, True])
def test_log_probabilities_have_the_requested_alternatives(
    answering_client: openai.OpenAI, stream: bool
) -> None:
    request = GREEDY | {"max_output_tokens": 4}
    wanted: dict[str, Any] = {"include": ["message.output_text.logprobs"], "top_logprobs": 3}
    if stream:
        events = list(answering_client.responses.create(**request, **wanted, stream=True))
        response = events[-1].response  # type: ignore[union-attr]
        streamed = [
            token
            for event in events
            if event.type == "response.output_text.delta"
            for token in event.logprobs
        ]
        assert [token.token for token in streamed] == ["The", " capital", " of", " France"]
    else:
        response = answering_client.responses.create(**request, **wanted)
    tokens = response.output[0].content[0].logprobs  # type: ignore[union-attr]
    assert tokens and [token.token for token in tokens] == ["The", " capital", " of", " France"]
    for token in tokens:
        assert len(token.top_logprobs) == 3
        assert token.top_logprobs[0].token == token.token  # greedy takes the likeliest
        assert token.logprob == token.top_logprobs[0].logprob < 0


def test_truncation_keeps_the_end_of_the_input(answering_client: openai.OpenAI) -> None:
    long = GREEDY | {"input": " one" * 2000, "max_output_tokens": 4}
    with pytest.raises(openai.BadRequestError) as refused:
        answering_client.responses.create(**long)
    assert refused.value.param == "input"
    response = answering_client.responses.create(**long, truncation="auto")
    assert response.usage and response.usage.input_tokens == 1020


def test_input_tokens_are_counted_as_the_answer_reports_them(answering_client: openai.OpenAI) -> None:
    count = answering_client.responses.input_tokens.count(
        model=MODEL, input=QUESTION, instructions="Be brief."
    )
    response = answering_client.responses.create(**GREEDY, instructions="Be brief.")
    assert response.usage
    assert count.input_tokens == response.usage.input_tokens


def test_stored_responses_are_refused_with_the_way_out(answering_client: openai.OpenAI) -> None:
    calls: list[Any] = [
        lambda: answering_client.responses.create(**GREEDY, previous_response_id="resp_1"),
        lambda: answering_client.responses.create(**GREEDY, background=True),
        lambda: answering_client.responses.create(**GREEDY, conversation="conv_1"),
        lambda: answering_client.responses.retrieve("resp_1"),
        lambda: answering_client.responses.cancel("resp_1"),
        lambda: answering_client.responses.delete("resp_1"),
        lambda: answering_client.responses.input_items.list("resp_1"),
    ]
    for call in calls:
        with pytest.raises(openai.BadRequestError, match="send the whole input"):
            call()


def test_client_raises_the_error_class_of_the_status(answering_client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        answering_client.responses.create(**GREEDY | {"temperature": -1})
    assert bad.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as limit:
        answering_client.responses.create(**GREEDY | {"max_output_tokens": 0})
    assert limit.value.param == "max_output_tokens"
    with pytest.raises(openai.NotFoundError):
        answering_client.responses.create(**GREEDY | {"model": "gpt-9"})


def test_options_that_do_nothing_here_are_accepted(answering_client: openai.OpenAI) -> None:
    response = answering_client.responses.create(
        **GREEDY,
        store=True,
        include=["reasoning.encrypted_content"],
        parallel_tool_calls=False,
        prompt_cache_key="k",
        service_tier="auto",
        reasoning={"effort": "low", "summary": "auto"},
        text={"format": {"type": "text"}, "verbosity": "low"},
        extra_body={"no_such_field": 1},
    )
    assert response.output_text == ANSWER
    assert response.reasoning and response.reasoning.effort == "low"


@pytest.mark.parametrize("stream", [False, True])
def test_answer_has_prompt_and_output_as_the_model_sees_them_on_request(
    answering_client: openai.OpenAI, stream: bool
) -> None:
    request = GREEDY | {"extra_body": {"enable_response_messages": True}}
    answer: Any = answering_client.responses.create(**request, stream=stream)
    response = list(answer)[-1].response if stream else answer
    [prompt], [output] = response.model_extra["input_messages"], response.model_extra["output_messages"]
    assert prompt["type"] == output["type"] == "raw_message_tokens"
    assert QUESTION in prompt["message"] and "<|im_start|>user" in prompt["message"]
    assert len(prompt["tokens"]) == response.usage.input_tokens
    assert output["message"].startswith(response.output_text)
    assert len(output["tokens"]) == response.usage.output_tokens
    plain = answering_client.responses.create(**GREEDY)
    assert "input_messages" not in (plain.model_extra or {})
