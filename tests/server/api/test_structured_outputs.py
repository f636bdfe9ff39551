"""Structured outputs over HTTP, with the openai client."""

import json
import re
from concurrent.futures import ThreadPoolExecutor

import jsonschema
import openai
import pytest
from tiers import tiered

HELLO = [{"role": "user", "content": "Describe a cat."}]
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 10}, "age": {"type": "integer", "maximum": 30}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
JSON_SCHEMA = {"type": "json_schema", "json_schema": {"name": "cat", "strict": True, "schema": SCHEMA}}

UNKNOWN_TYPE = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "nope"}}}


REQUEST = {
    "model": "smollm2",
    "messages": HELLO,
    "response_format": JSON_SCHEMA,
    "temperature": 0,
    "max_tokens": 200,
}


def test_chat_answer_is_json_of_the_schema(server) -> None:
    answer = server.client().chat.completions.create(**REQUEST).choices[0]
    assert answer.finish_reason == "stop"
    jsonschema.validate(json.loads(answer.message.content), SCHEMA)


def test_streamed_json_equals_that_of_the_whole_answer(tiered_server) -> None:
    client = tiered_server.client()
    with tiered_server.saying('{"name": "Tom", "age": 3}'):
        whole = client.chat.completions.create(**REQUEST).choices[0]
        streamed = client.chat.completions.create(**REQUEST, stream=True)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in streamed) == whole.message.content


@pytest.mark.parametrize(
    ("fields", "pattern"),
    [
        ({"structured_outputs": {"choice": ["red", "green"]}}, "red|green"),
        ({"structured_outputs": {"regex": "[0-9]{3}"}}, "[0-9]{3}"),
        ({"guided_grammar": 'root ::= "a" [0-9]'}, "a[0-9]"),
        ({"guided_choice": ["x"]}, "x"),
    ],
)
def test_completion_matches_the_grammar(server, fields: dict, pattern: str) -> None:
    completion = server.client().completions.create(
        model="smollm2", prompt="A word: ", n=2, temperature=1.0, extra_body=fields
    )
    assert len(completion.choices) == 2
    assert all(re.fullmatch(pattern, choice.text) for choice in completion.choices)


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"response_format": UNKNOWN_TYPE}, "response_format", "nope"),
        ({"guided_regex": "(?=a)"}, "guided_regex", "look-around"),
        ({"structured_outputs": {"grammar": "start: nope"}}, "structured_outputs", "nope"),
        ({"guided_grammar": 'start: "q" @main'}, "guided_grammar", "'@main', which does not exist"),
        ({"structured_outputs": {"grammar": "start: @form", "form": {"regex": "a"}}}, "structured_outputs", "form"),
        ({"structured_outputs": {"json": {"enum": ["x" * 10] * 30_000}}}, "structured_outputs", "bytes"),
        ({"structured_outputs": {"json": {"type": "integer", "multipleOf": 999983}}}, "structured_outputs", "complex"),
        ({"structured_outputs": {"regex": "a"}, "use_beam_search": True}, "structured_outputs", "beam search"),
    ],
)  # fmt: skip
def test_bad_grammar_is_answered_with_400(scripted, fields: dict, param: str, message: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        scripted.client().chat.completions.create(model="smollm2", messages=HELLO, extra_body=fields)
    assert refused.value.param == param
    assert message in refused.value.message
    assert len(refused.value.message) < 600


@pytest.mark.parametrize("count", tiered([4, 8], 4))
def test_bad_grammars_do_not_disturb_other_requests(server, count: int) -> None:
    client = server.client()

    def answer(number: int) -> str:
        bad = {"structured_outputs": {"json": {"type": "integer", "multipleOf": 999_900 + number}}}
        good = {"structured_outputs": {"choice": [f"word {number}"]}}
        try:
            answered = client.completions.create(
                model="smollm2", prompt="a", extra_body=bad if number % 2 else good
            )
        except openai.BadRequestError:
            return "refused"
        return answered.choices[0].text

    with ThreadPoolExecutor(count) as threads:
        answers = list(threads.map(answer, range(count)))
    assert answers == ["refused" if number % 2 else f"word {number}" for number in range(count)]
