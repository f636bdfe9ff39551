"""Forms and calls that are demanded of the real model, whether it thinks or not."""

import json
import re
from typing import Any

import jsonschema
import pytest
from asked import APIS, CHAT, MESSAGES, RESPONSES, ask, stream
from local_server import LocalServer

SWITCHES = {"on": True, "off": False, "undecided": None}
SCHEMA = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "blue"]}},
    "required": ["colour"],
    "additionalProperties": False,
}
TOOLS = {
    "paint": {
        "type": "object",
        "properties": {"colour": {"enum": ["red", "green"]}},
        "required": ["colour"],
        "additionalProperties": False,
    },
    "now": {"type": "object", "additionalProperties": False},
}
BUDGET = 3
FORMS: dict[str, dict[str, Any]] = {
    "schema": {"schema": SCHEMA},
    "object": {"guided_json": {"type": "object"}, "limit": 12},
    "choice": {"guided_choice": ["red", "deep blue"]},
    "regex": {"guided_regex": "[a-c]{2}-[0-9]"},
    "required": {"tools": TOOLS, "choice": "required", "parallel": False},
    "named": {"tools": TOOLS, "choice": "paint", "parallel": False},
    "none beside a form": {"tools": TOOLS, "choice": "none", "schema": SCHEMA},
    "auto beside a form": {"tools": TOOLS, "choice": "auto", "parallel": False, "schema": SCHEMA},
    "required beside a form": {"tools": TOOLS, "choice": "required", "parallel": False, "schema": SCHEMA},
}
# The field of the form.
FIELDS = {CHAT: "response_format", MESSAGES: "output_config.format", RESPONSES: "text.format"}


@pytest.fixture(params=["text", pytest.param("tokens", marks=pytest.mark.more)])
def model(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue("thinking_model" if request.param == "text" else "marked_model")


# Each switch and API, a form and calls, with a form that takes few tokens. Schemas are also held in the tests of
# structured outputs, with the same model.
DEFAULT = {
    ("choice", CHAT, "on"),
    ("choice", RESPONSES, "undecided"),
    ("auto beside a form", CHAT, "off"),
    ("required beside a form", MESSAGES, "undecided"),
}


@pytest.mark.parametrize(
    ("form", "api", "switch"),
    [
        pytest.param(*case, marks=() if case in DEFAULT else pytest.mark.more)
        for case in ((form, api, switch) for form in FORMS for api in APIS for switch in SWITCHES)
    ],
)
def test_form_is_held_whole_and_streamed(model: LocalServer, form: str, api: str, switch: str) -> None:
    fields: dict[str, Any] = {"limit": 60, "thinking_token_budget": BUDGET, **FORMS[form]}
    if (enabled := SWITCHES[switch]) is not None:
        fields["chat_template_kwargs"] = {"enable_thinking": enabled}

    reply = ask(model, api, **fields)

    check(form, reply.content, reply.calls)
    assert bool(reply.reasoning) <= reply.reasoning_tokens <= (0 if switch == "off" else BUDGET)
    assert reply.ignored == (f"{FIELDS[api]} (demanded_call)" if form == "required beside a form" else None)
    if form == "choice" or (form, api, switch) not in DEFAULT:
        assert stream(model, api, **fields) == reply


def check(form: str, content: str, calls: list[tuple[str, Any]]) -> None:
    """Check that an answer is calls or has the form, and has nothing else."""
    if calls:
        assert form in ("required", "named", "auto beside a form", "required beside a form")
        assert content == ""
        for (
            name,
            arguments,
        ) in calls:  # those of a tool that is not strict follow its schema where one is demanded
            jsonschema.validate(
                arguments, TOOLS[name] if form != "auto beside a form" else {"type": "object"}
            )
        if form == "named":
            assert {name for name, _ in calls} == {"paint"}
    elif form == "choice":
        assert content in ("red", "deep blue")
    elif form == "regex":
        assert re.fullmatch("[a-c]{2}-[0-9]", content)
    elif form == "object":
        assert content.startswith("{")  # the model may fill it until the answer's limit
    else:
        assert form in ("schema", "none beside a form", "auto beside a form")
        jsonschema.validate(json.loads(content), SCHEMA)
