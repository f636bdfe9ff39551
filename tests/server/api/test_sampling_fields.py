"""Fields of requests that are parameters of the engine: each arrives there."""

import ast
import json
from pathlib import Path

import pytest
from field_tables import treatments

from engine_server import server
from engine_server.requests.errors import InvalidRequestError
from engine_server.requests.sampling_params import SamplingParams
from engine_server.server.api.chat.request import ChatRequest
from engine_server.server.api.completions import CompletionRequest
from engine_server.server.api.generation_request import GenerationRequest, parse_request
from engine_server.server.api.messages.request import MessagesRequest
from engine_server.server.api.responses.request import ResponsesRequest
from engine_server.server.generation.response_format import FIELDS as GRAMMAR_FIELDS
from engine_server.server.http.errors import ApiError

MESSAGES = [{"role": "user", "content": "Hi"}]
BODIES: dict[type[GenerationRequest], dict[str, object]] = {
    CompletionRequest: {"prompt": "Hi"},
    ChatRequest: {"messages": MESSAGES},
    MessagesRequest: {"model": "m", "messages": MESSAGES, "max_tokens": 5},
    ResponsesRequest: {"input": "Hi"},
}
# Another value than the default of each field.
VALUES: dict[str, object] = {
    "n": 2,
    "best_of": 3,
    "presence_penalty": 0.5,
    "frequency_penalty": 0.25,
    "repetition_penalty": 1.5,
    "temperature": 0.75,
    "top_p": 0.5,
    "top_k": 7,
    "min_p": 0.125,
    "seed": 11,
    "stop_token_ids": [5],
    "bad_words": ["word"],
    "min_tokens": 2,
    "timeout": 9.5,
    "ignore_eos": True,
    "prompt_logprobs": 3,
    "include_stop_str_in_output": True,
    "detokenize": False,
    "skip_special_tokens": False,
    "spaces_between_special_tokens": False,
    "logits_processors": ["module.name"],
    "logit_bias": {"5": 1.5},
    "allowed_token_ids": [5, 6],
}
FIELDS = [(kind, name) for kind in BODIES for name in kind.sampling_fields()]


def body(kind: type[GenerationRequest], **fields: object) -> bytes:
    return json.dumps(BODIES[kind] | fields).encode()


@pytest.mark.parametrize(
    ("kind", "name"), FIELDS, ids=lambda value: value if isinstance(value, str) else value.__name__
)
def test_each_field_arrives_at_the_engine_or_is_refused(kind: type[GenerationRequest], name: str) -> None:
    default = getattr(SamplingParams(), name)
    try:
        request = parse_request(kind, body(kind, **{name: VALUES[name]}))
    except ApiError as error:
        assert error.param == name
        return
    found = request.sampling_parameters({})[name]
    expected = {5: 1.5} if name == "logit_bias" else VALUES[name]
    assert found == expected != default


def test_completions_take_every_field() -> None:
    assert set(CompletionRequest.sampling_fields()) == set(VALUES)


@pytest.mark.parametrize("name", CompletionRequest.sampling_fields())
def test_a_beam_search_takes_the_fields_that_are_marked_and_no_others(name: str) -> None:
    taken = {"n", "temperature", "seed", "ignore_eos", "include_stop_str_in_output", "timeout"}
    value = {"temperature": 0.0}.get(name, VALUES[name])
    try:
        request = parse_request(
            CompletionRequest, body(CompletionRequest, use_beam_search=True, **{name: value})
        )
        assert request.beam_search_params({}) is not None
    except (ApiError, InvalidRequestError) as error:
        assert name not in taken, error
    else:
        assert name in taken


def names_read() -> set[str]:
    """Return the names of all attributes that the server reads, and of the fields of a grammar."""
    found = set(GRAMMAR_FIELDS)
    for file in Path(server.__path__[0]).rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                found.add(node.attr)
    return found


@pytest.mark.parametrize("kind", BODIES, ids=lambda kind: kind.__name__)
def test_each_supported_field_is_a_parameter_of_the_engine_or_read_by_the_server(
    kind: type[GenerationRequest],
) -> None:
    treated = treatments(kind)
    fields = kind.model_fields.items()
    supported = {name for name, field in fields if treated[field.alias or name] == "supported"}

    assert supported - set(kind.sampling_fields()) - names_read() == set()
