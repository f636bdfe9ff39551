"""The fields of the messages and responses APIs: each is supported, refused by name, or ignored on purpose."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from anthropic.types.beta.message_create_params import MessageCreateParamsBase
from openai.types.responses.response_create_params import ResponseCreateParamsBase

from engine_server.server.api.fields import IgnoredMark, Unsupported
from engine_server.server.api.generation_request import ApiRequest, parse_request
from engine_server.server.api.messages.request import MessagesRequest
from engine_server.server.api.responses.request import ResponsesRequest
from engine_server.server.http.errors import ApiError

DOCS = Path(__file__).parents[3] / "docs" / "http-api.md"
MODELS: dict[str, type[ApiRequest]] = {"messages": MessagesRequest, "responses": ResponsesRequest}
BODIES: dict[type[ApiRequest], dict[str, Any]] = {
    MessagesRequest: {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "a"}]},
    ResponsesRequest: {"model": "m", "input": "a"},
}
ROW = re.compile(r"^\| `(\w+)` \| (supported|rejected|ignored|-) \| (supported|rejected|ignored|-) \|$", re.M)
# Arguments of the client that are headers.
HEADERS = {"betas", "user_profile_id", "workspace_id"}


def kinds(model: type[ApiRequest]) -> dict[str, str]:
    """Return how a model treats each field, as the table in the documentation names it."""
    found = {}
    for name, field in model.model_fields.items():
        ignored = any(isinstance(mark, IgnoredMark) for mark in field.metadata)
        rejected = any(isinstance(mark, Unsupported) for mark in field.metadata)
        found[field.alias or name] = "ignored" if ignored else "rejected" if rejected else "supported"
    return found


@pytest.mark.parametrize(
    ("model", "names"),
    [
        (MessagesRequest, {*MessageCreateParamsBase.__annotations__, "stream"} - HEADERS),
        (ResponsesRequest, {*ResponseCreateParamsBase.__annotations__, "stream"}),
    ],
)
def test_every_field_of_the_client_is_known(model: type[ApiRequest], names: set[str]) -> None:
    assert sorted(names - kinds(model).keys()) == []


def test_documentation_states_the_treatment_of_every_field() -> None:
    documented = {name: tuple(found) for name, *found in ROW.findall(DOCS.read_text())}
    columns = [kinds(model) for model in MODELS.values()]
    names = sorted({name for column in columns for name in column})
    actual = {name: tuple(column.get(name, "-") for column in columns) for name in names}
    table = "\n".join(f"| `{name}` | {' | '.join(found)} |" for name, found in actual.items())
    assert documented == actual, f"docs/http-api.md should have\n{table}"


@pytest.mark.parametrize(
    ("model", "name"),
    [(model, name) for model in MODELS.values() for name, kind in kinds(model).items() if kind == "rejected"],
)
def test_field_that_is_not_supported_is_refused_by_name(model: type[ApiRequest], name: str) -> None:
    with pytest.raises(ApiError) as refused:
        parse_request(model, json.dumps(BODIES[model] | {name: "something"}).encode())
    assert (refused.value.param, refused.value.code) == (name, "unsupported_value")
    parse_request(model, json.dumps(BODIES[model] | {name: None}).encode())
