"""The caller that the router reports: its scope of cached prompts, its priority, and its share of grammar trials."""

import http.client
import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from api_client import JSON
from local_server import LocalServer, serving
from waiting import until

from engine_server.contract.base.caller import ReportedCaller
from engine_server.forks.task_line import TaskLine
from engine_server.structured.trial_process import Verdict
from engine_server.structured.trials import SHARES

KEY = "the-key-of-the-router"
COMPLETIONS = "/v1/completions"
CALLER = ReportedCaller("a" * 32, "b" * 32, -7)
OTHER = ReportedCaller("c" * 32, "d" * 32, 0)


@pytest.fixture(scope="module")
def keyed() -> Iterator[LocalServer]:
    with serving(f"--api-key={KEY}", "--scheduling-policy=priority") as server:
        yield server


def headers(caller: ReportedCaller | str | None) -> dict[str, str]:
    value = caller.value() if isinstance(caller, ReportedCaller) else caller
    return {"Authorization": f"Bearer {KEY}"} | ({} if value is None else {"Fairlead-Caller": value})


def ask(
    server: LocalServer, caller: ReportedCaller | str | None, path: str = COMPLETIONS, **fields: Any
) -> Any:
    body = {"model": "smollm2", "max_tokens": 1} | fields
    return server.request("POST", path, body, headers(caller))


@contextmanager
def asking(server: LocalServer, caller: ReportedCaller, **fields: Any) -> Iterator[None]:
    """Send a request, and disconnect at the end of the context."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    body = json.dumps({"model": "smollm2", "prompt": "A", "max_tokens": 1} | fields)
    connection.request("POST", COMPLETIONS, body, headers(caller) | JSON)
    try:
        yield
    finally:
        assert connection.sock is not None
        connection.sock.shutdown(socket.SHUT_RDWR)
        connection.close()


def slow_grammar(number: int) -> dict[str, Any]:
    """Return the field for a grammar whose trial ends at the limit of its time."""
    return {"json": {"type": "integer", "multipleOf": 999_900 + number}}


def line_of(server: LocalServer) -> TaskLine[Verdict]:
    trials = server.host.model.engine._front_end._trials
    assert trials is not None
    return trials._line


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (COMPLETIONS, {"prompt": "Hi"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}),
        ("/v1/responses", {"input": "Hi", "max_output_tokens": 16}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "Hi"}]}),
        (COMPLETIONS, {"prompt": "Hi", "use_beam_search": True, "n": 2}),
        ("/invocations", {"prompt": "Hi"}),
    ],
)
def test_scope_and_priority_of_the_caller_reach_the_core(
    keyed: LocalServer, path: str, fields: dict[str, Any]
) -> None:
    assert ask(keyed, CALLER, path, **fields).status == 200
    request = keyed.core.requests[-1]
    assert (request.cache_scope, request.priority) == (CALLER.scope, CALLER.priority)


def test_priority_of_the_caller_counts_in_place_of_the_requests_own(keyed: LocalServer) -> None:
    assert ask(keyed, CALLER, prompt="A", priority=-(2**63), cache_salt="mine").status == 200
    request = keyed.core.requests[-1]
    assert (request.priority, request.cache_salt) == (-7, "mine")
    assert ask(keyed, None, prompt="A", priority=-5).status == 200
    request = keyed.core.requests[-1]
    assert (request.priority, request.cache_scope) == (-5, None)


def test_engine_without_priorities_takes_none_of_the_caller() -> None:
    with serving(f"--api-key={KEY}") as server:
        assert ask(server, CALLER, prompt="A").status == 200
        assert (server.core.requests[-1].priority, server.core.requests[-1].cache_scope) == (0, CALLER.scope)
        answer = ask(server, CALLER, prompt="A", priority=1)
        assert answer.status == 400 and answer.error["param"] == "priority"


@pytest.mark.parametrize("value", ["", "id=1", f"{CALLER.value()[:-2]}x", "a" * 5000])
def test_other_values_of_the_header_are_refused(keyed: LocalServer, value: str) -> None:
    answer = ask(keyed, value, prompt="A")
    assert answer.status == 400 and "Fairlead-Caller takes id=" in answer.error["message"]


def test_engine_that_asks_for_no_key_believes_no_caller(scripted: LocalServer) -> None:
    for caller in (CALLER, "id=1"):
        assert ask(scripted, caller, prompt="A", priority=3).status == 200
        request = scripted.core.requests[-1]
        assert (request.priority, request.cache_scope) == (3, None)


def test_grammar_of_one_caller_is_tried_while_slow_ones_of_another_wait(keyed: LocalServer) -> None:
    with ExitStack() as slow:
        for number in range(12):
            slow.enter_context(asking(keyed, CALLER, structured_outputs=slow_grammar(number)))
        until(lambda: line_of(keyed).num_waiting > SHARES.running_of_caller)
        assert ask(keyed, OTHER, prompt="A", structured_outputs={"choice": ["fast"]}).status == 200
        assert line_of(keyed).num_waiting > 0
    until(lambda: line_of(keyed).num_waiting == 0)
    until(lambda: line_of(keyed).num_running == 0)


def test_caller_beyond_its_share_of_grammars_is_refused_alone(
    keyed: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_of(keyed), "shares", SHARES._replace(waiting_of_caller=1))
    with ExitStack() as slow:
        for number in range(20, 23):
            slow.enter_context(asking(keyed, CALLER, structured_outputs=slow_grammar(number)))
        until(lambda: line_of(keyed).num_waiting == 1)
        for stream in (False, True):
            refused = ask(keyed, CALLER, prompt="A", structured_outputs={"regex": "one more"}, stream=stream)
            assert (refused.status, refused.error["code"]) == (429, "rate_limited")
            assert refused.error["type"] == "rate_limit_error" and refused.headers["retry-after"] == "1"
        assert ask(keyed, OTHER, prompt="A", structured_outputs={"regex": "another"}).status == 200
        monkeypatch.setattr(line_of(keyed), "shares", SHARES._replace(waiting=1))
        full = ask(keyed, OTHER, prompt="A", structured_outputs={"regex": "not even one"})
        assert (full.status, full.error["code"]) == (503, "queue_full")
