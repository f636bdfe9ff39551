"""Hostile messages of clients, engines, pods and routers: each is decoded in range, or refused by its decoder."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llm_operator.control import fetch_poller, start_poller
from msgspec.structs import astuple

from engine_server.contract.base.decoding import decode
from engine_server.contract.base.ranges import MOST
from engine_server.contract.cluster.adapters import AdapterStates
from engine_server.contract.cluster.demand import DemandReport
from engine_server.contract.wire.continuation import REPORT_PREFIX, TokenReport
from engine_server.contract.wire.engine_report import ReportedLoad, ReportedUsage
from engine_server.contract.wire.router_head import RouterHead
from engine_server.router.callers import peers
from engine_server.router.errors import RequestError
from engine_server.router.requests.api_events import created_response, reported_error
from engine_server.router.requests.outcome import read_refusal
from engine_server.router.routing.key import read_key
from engine_server.server.api.continuation import resumed_stream
from engine_server.server.http.errors import ApiError

NESTED = "[" * 1500 + "]" * 1500
EXTREMES = [
    "9" * 310,
    "-" + "9" * 310,
    "1.7e308",
    "1e999",
    "-1",
    "NaN",
    "null",
    "true",
    '"x"',
    "[]",
    "{}",
    NESTED,
]
VALID = {
    "client": {
        "model": "m", "stream": True, "user": "u", "metadata": {"user_id": "u"},
        "messages": [{"role": "user", "content": [{"type": "text", "text": "t"}]}], "prompt": [["p"]],
    },
    "token report": {
        "seed": 1, "token_ids": [1], "events": 1, "id": "i", "created": 1,
        "cached_tokens": 1, "prompt_tokens": 1, "prompt_hash": "0123456789abcdef" * 2,
        "usage": {"prompt_tokens": 1, "completion_tokens": 1},
    },
    "refusal": {"error": {"code": "queue_full", "message": "m"}},
    "error event": {"type": "error", "code": 1, "error": {"code": "aborted"}},
    "created response": {"type": "response.created", "response": {"id": "resp_1", "created_at": 1}},
    "readiness": {"status": "loading", "phase": "load", "percent": 1, "seconds": {"load": 1.0}},
    "progress": {"done": 1, "total": 2},
    "adapters": {"adapters": [{"name": "n", "uri": "u", "state": "ready", "hash": "h", "error": None}]},
    "demand": {
        "deployments": [{
            "namespace": "n", "name": "m", "in_flight": 1, "held": 1, "idle_seconds": 1.0,
            "endpoints": [{"address": "a", "kv": 0.5, "age": 1.0}], "requests": {"a": 1},
        }]
    },
    "usage of a router": {
        "router": "r", "age": 1.0,
        "keys": {"k": {
            "requests": 1, "tokens": 1, "in_flight": 1, "requests_last_minute": 1, "tokens_owed": 1.0,
            "tokens_estimated": 1,
        }},
    },
}  # fmt: skip
RESUME = {"resume": {"id": "i", "created": 1, "seed": 1, "model": "hash", "token_ids": [1], "events": 1}}


READERS: dict[str, Callable[[bytes], Any]] = {
    "client": lambda body: read_key(body, {}, 100),
    "token report": lambda body: TokenReport.decode(REPORT_PREFIX + body),
    "refusal": lambda body: read_refusal(503, None, body),
    "error event": lambda body: reported_error(b"data: " + body + b"\n\n"),
    "created response": lambda body: created_response(b"data: " + body + b"\n\n"),
    "readiness": lambda body: decode(start_poller.decoder.decode, body),
    "progress": lambda body: decode(fetch_poller.decoder.decode, body),
    "adapters": AdapterStates.decode,
    "demand": DemandReport.decode,
    "usage of a router": lambda body: decode(peers._decoder.decode, body),
}


@st.composite
def damaged(draw: st.DrawFn, valid: Any) -> str:
    """Return the JSON of `valid` with extreme values at some places, and unknown fields."""
    if draw(st.integers(0, 4)) == 0:
        return draw(st.sampled_from(EXTREMES))
    if isinstance(valid, dict):
        parts = [f"{json.dumps(name)}: {draw(damaged(value))}" for name, value in valid.items()]
        if draw(st.booleans()):
            parts.append(f'"unknown": {draw(st.sampled_from(EXTREMES))}')
        return "{" + ", ".join(parts) + "}"
    if isinstance(valid, list):
        return "[" + ", ".join(draw(damaged(value)) for value in valid) + "]"
    return json.dumps(valid)


@pytest.mark.parametrize("sender", READERS)
@given(st.data())
def test_nothing_but_a_refusal_leaves_the_decoder(sender: str, data: st.DataObject) -> None:
    body = data.draw(damaged(VALID[sender])).encode()
    if data.draw(st.booleans()):
        cut = data.draw(st.integers(0, len(body)))
        body = body[:cut] + data.draw(st.binary(max_size=4))

    try:
        READERS[sender](body)
    except ValueError:
        assert sender not in ("refusal", "error event", "created response")
    except RequestError as error:
        assert sender == "client" and error.status == 400


@pytest.mark.parametrize("sender", READERS)
def test_valid_messages_are_taken(sender: str) -> None:
    READERS[sender](json.dumps(VALID[sender]).encode())


@given(damaged(RESUME))
def test_the_engine_refuses_a_continuation_out_of_range(body: str) -> None:
    try:
        fields = {"fairlead": json.loads(body)}
    except (ValueError, RecursionError):
        return  # the parser of bodies refuses it
    try:
        resume = resumed_stream(RouterHead(resumes=True), fields, "hash")
    except ApiError as error:
        assert error.status in (400, 409)
    else:
        assert resume is not None and max(resume.events, *resume.token_ids, 0) <= MOST


NUMBERS = st.sampled_from(["0", "1", "0.5", "1.001", "-1", "nan", "inf", "1.7e308", "9" * 10, "9" * 310])


@given(NUMBERS, NUMBERS, NUMBERS, NUMBERS, st.sampled_from(["", ", context=4096", "x"]))
def test_loads_and_usages_in_headers_are_in_range_or_none(
    running: str, waiting: str, room: str, kv: str, rest: str
) -> None:
    load = ReportedLoad.parse(f"running={running}, waiting={waiting}, room={room}, kv={kv}{rest}".encode())
    usage = ReportedUsage.parse(f"prompt={running}, completion={waiting}".encode())

    assert load is None or (max(astuple(load)) <= MOST and min(astuple(load)) >= 0 and load.kv <= 1)
    assert usage is None or 0 <= max(usage.prompt_tokens, usage.completion_tokens) <= MOST


@given(st.binary(max_size=80))
def test_any_bytes_in_a_header_are_taken_or_none(value: bytes) -> None:
    ReportedLoad.parse(value)
    ReportedUsage.parse(value)
