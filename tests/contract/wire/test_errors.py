"""Error bodies: one shape from server and router, as OpenAI's clients read it."""

import json
import re
from pathlib import Path

import pytest

from engine_server.contract.wire.errors import (
    ErrorBody,
    ErrorCode,
    ErrorDetail,
    ErrorType,
    router_error_type,
    server_error_type,
)


def test_an_error_body_has_every_field_in_openai_order():
    body = ErrorBody(ErrorDetail("too long", ErrorType.INVALID_REQUEST, "prompt", ErrorCode.INVALID_VALUE))

    assert body.encode() == (
        b'{"error":{"message":"too long","type":"invalid_request_error","param":"prompt","code":"invalid_value"}}'
    )


def test_an_error_of_no_field_has_null_for_it():
    body = json.loads(ErrorBody(ErrorDetail("no", ErrorType.SERVER, None, ErrorCode.INTERNAL_ERROR)).encode())

    assert body["error"]["param"] is None


@pytest.mark.parametrize(
    ("status", "from_server", "from_router"),
    [
        (400, "invalid_request_error", "invalid_request_error"),
        (404, "not_found_error", "invalid_request_error"),
        (413, "invalid_request_error", "invalid_request_error"),
        (500, "server_error", "service_unavailable_error"),
        (502, "server_error", "service_unavailable_error"),
        (503, "service_unavailable_error", "service_unavailable_error"),
    ],
)
def test_the_type_follows_from_the_status(status, from_server, from_router):
    assert server_error_type(status) == from_server
    assert router_error_type(status) == from_router


def test_the_documents_list_every_code_with_its_status_and_whether_another_engine_may_answer():
    document = Path(__file__).parents[3] / "docs" / "http-api.md"
    rows = re.findall(r"^\| (\d{3}) \| `(\w+)` \| .* \| ?(.*?) ?\|$", document.read_text(), re.MULTILINE)
    assert sorted((code, int(status), elsewhere or "never") for status, code, elsewhere in rows) == sorted(
        (code.value, code.status, code.elsewhere.value) for code in ErrorCode
    )
