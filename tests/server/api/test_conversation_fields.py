"""The fields of the messages and responses APIs: each is supported, refused by name, or ignored on purpose."""

import json
from typing import Any

import pytest
from anthropic.types.beta.message_create_params import MessageCreateParamsBase
from field_tables import documented_rows, rows, treatments
from openai.types.responses.response_create_params import ResponseCreateParamsBase

from engine_server.server.api.generation_request import ApiRequest, parse_request
from engine_server.server.api.messages.request import MessagesRequest
from engine_server.server.api.responses.request import ResponsesRequest
from engine_server.server.http.errors import ApiError

MODELS: dict[str, type[ApiRequest]] = {"messages": MessagesRequest, "responses": ResponsesRequest}
BODIES: dict[type[ApiRequest], dict[str, Any]] = {
    MessagesRequest: {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "a"}]},
    ResponsesRequest: {"model": "m", "input": "a"},
}
# Arguments of the client that are headers.
HEADERS = {"betas", "user_profile_id", "workspace_id"}


@pytest.mark.parametrize(
    ("model", "names"),
    [
        (MessagesRequest, {*MessageCreateParamsBase.__annotations__, "stream"} - HEADERS),
        (ResponsesRequest, {*ResponseCreateParamsBase.__annotations__, "stream"}),
    ],
)
def test_every_field_of_the_client_is_known(model: type[ApiRequest], names: set[str]) -> None:
    assert sorted(names - treatments(model).keys()) == []


def test_documentation_states_the_treatment_of_every_field() -> None:
    actual = rows([*MODELS.values()])
    assert documented_rows(len(MODELS)) == actual, "docs/http-api.md should have\n" + "\n".join(actual)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (model, name)
        for model in MODELS.values()
        for name, found in treatments(model).items()
        if found == "rejected"
    ],
)
def test_field_that_is_not_supported_is_refused_by_name(model: type[ApiRequest], name: str) -> None:
    with pytest.raises(ApiError) as refused:
        parse_request(model, json.dumps(BODIES[model] | {name: "something"}).encode())
    assert (refused.value.param, refused.value.code) == (name, "unsupported_value")
    parse_request(model, json.dumps(BODIES[model] | {name: None}).encode())
