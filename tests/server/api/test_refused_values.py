"""Bodies of many wrong values: each field of each request model is refused with few errors, whatever it contains."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

import engine_server.server.application  # all request models
from engine_server.contract.base.bounds import NESTED_VALUES
from engine_server.server.api.chat.request import ChatRequest
from engine_server.server.api.completions import CompletionRequest
from engine_server.server.api.generation_request import ApiRequest, parse_request
from engine_server.server.http.errors import ApiError

assert engine_server.server.application
MANY = 100
# Of the types that a union tries, and of a field's own parts.
MOST_ERRORS = 12


def subclasses(kind: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for inner in kind.__subclasses__():
        yield inner
        yield from subclasses(inner)


def schemas(value: Any) -> Iterator[dict[str, Any]]:
    """Yield all parts of a core schema."""
    if isinstance(value, dict):
        yield value
        for inner in value.values():
            yield from schemas(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from schemas(inner)


PARTS = [part for request in subclasses(ApiRequest) for part in schemas(request.__pydantic_core_schema__)]
MODELS = sorted({part["cls"] for part in PARTS if part.get("type") == "model"}, key=str)
TAGS = sorted({tag for part in PARTS if part.get("type") == "tagged-union" for tag in part["choices"]})
ITEMS = [1, 1.5, "x", None, {}, *({"type": tag} for tag in TAGS)]
LISTS = [[item] * MANY for item in [*ITEMS, [None], {"a": None}]]
NAMED = [{str(number): item for number in range(MANY)} for item in ITEMS[:4]]
WRONG = [
    json.dumps(wrong).encode() for wrong in [*LISTS, *NAMED, LISTS, NAMED, [LISTS[0]], [LISTS[2]], [NAMED[0]]]
]


def num_errors(model: type[BaseModel], body: bytes) -> int:
    try:
        model.model_validate_json(body)
    except ValidationError as error:
        return error.error_count()
    return 0


@pytest.mark.parametrize("model", MODELS, ids=lambda model: f"{model.__module__}.{model.__name__}")
def test_a_field_of_many_wrong_values_makes_few_errors(model: type[BaseModel]) -> None:
    missing = num_errors(model, b"{}")
    for name in model.__annotations__:  # not those of its parents, which are models too
        field = model.model_fields.get(name)
        if field is None:
            continue
        counts = [num_errors(model, b'{"%s": %s}' % ((field.alias or name).encode(), body)) for body in WRONG]
        assert max(counts) <= missing + MOST_ERRORS, name


def test_the_walk_finds_models_within_lists_and_unions() -> None:
    names = {model.__name__ for model in MODELS}
    assert names >= {
        "ToolCall",
        "ToolResultBlock",
        "ReasoningPart",
        "NamespaceTool",
        "ClearToolUses",
        "ThinkingSwitch",
    }


def test_values_that_have_no_effect_are_not_kept() -> None:
    body = json.dumps({"prompt": "a", "unknown": [1, 2], "user": ["x"], "fairlead": {"resume": {}}}).encode()
    request = parse_request(CompletionRequest, body)
    assert request.model_extra == {"fairlead": {"resume": {}}}
    assert request.user is None


def test_whole_numbers_of_a_long_list_are_integers() -> None:
    body = b'{"prompt": "a", "allowed_token_ids": [%s]}' % b",".join([b"7.0"] * MANY)
    assert parse_request(CompletionRequest, body).allowed_token_ids == [7] * MANY


def conversation(arguments: list[str]) -> bytes:
    calls = [{"type": "function", "function": {"name": "f", "arguments": one}} for one in arguments]
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": calls}]
    return json.dumps({"messages": messages}).encode()


def test_arguments_of_calls_with_too_many_values_in_all_are_refused() -> None:
    text = json.dumps({"a": [1] * (NESTED_VALUES.limit // 2)})
    parse_request(ChatRequest, conversation([text]))

    with pytest.raises(ApiError, match="in the JSON of earlier calls' arguments") as refused:
        parse_request(ChatRequest, conversation([text] * 2))
    assert refused.value.param == "messages.1.tool_calls.1.function.arguments"


def test_arguments_of_calls_may_have_long_texts() -> None:
    table = json.dumps({"content": '"1", [2], {3}\n' * NESTED_VALUES.limit})
    parse_request(ChatRequest, conversation([table, table]))
