"""Exchanges that the router writes."""

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
from compat.exchange import Exchange
from compat.http_text import parse_message
from compat.sample import ADAPTER, ADDRESS, ADMIN_ROOTS, KEY, MANIFEST, ROUTER_ROOTS, UID, config_map
from compat.scripted_engine import FINGERPRINT, STREAM_SETTINGS, EngineServer
from llm_operator.autoscaling.autoscaler import by_deployment, sample_of
from llm_operator.control.deletion_costs import requests_by_host
from llm_operator.control.watching.scales import scale_of

from engine_server.contract.cluster.demand import DemandReport
from engine_server.contract.wire.continuation import (
    REPORT_PREFIX,
    RepeatedLogprobs,
    ReportedLogprob,
    TokenReport,
    prompt_hash,
)
from engine_server.contract.wire.deadline import TimeLeft
from engine_server.contract.wire.engine_report import EngineReport, ReportedLoad
from engine_server.router.callers.account import ANYONE, Account
from engine_server.router.callers.engine_credentials import EngineCredentials
from engine_server.router.callers.keys import KeyEntry
from engine_server.router.callers.ledger import Ledger, UsageReport
from engine_server.router.demand import Demand
from engine_server.router.demand_page import DemandPage
from engine_server.router.http.wire import Request
from engine_server.router.requests.journal import Journal, resume_message
from engine_server.router.routing.directory import Adapter, Deployment, Directory, Route
from engine_server.router.routing.endpoint import Address

ENGINE = Address(ADDRESS, 8000)
DEPLOYMENT = Deployment(
    KEY, ("llama-chat",), (ENGINE,), uid=UID, known_to_engines=True, adapters=(Adapter(ADAPTER, (ENGINE,)),)
)
CALLER = Account(KeyEntry(name="team", sha256="0" * 64, priority=2))
# Seconds on the clock of the router that writes.
NOW = 1000.0


def ignore(*_: object) -> None:
    """Take no notice of an endpoint."""


def directory() -> Directory:
    found = Directory("least_load", on_added=ignore, on_removed=ignore)
    found.put(DEPLOYMENT)
    return found


def route(name: str) -> Route:
    found = directory().resolve(name)
    assert found is not None
    return found


def credentials(roots: tuple[bytes, ...]) -> EngineCredentials:
    """Return the router's credentials with these root keys."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "keys"
        file.write_bytes(b"\n".join(roots))
        return EngineCredentials(file)


def client_request(model: str, **fields: object) -> Request:
    body = {"model": model, "prompt": [1, 2], "request_id": "r1", "seed": 5, "stream": True, **fields}
    lines = b"Host: models\r\nContent-Type: application/json\r\n"
    return Request(
        b"POST", b"/v1/completions", lines, {}, msgspec.json.encode(body), http11=True, last=False, id=b"r1"
    )


def head_lines(model: str) -> bytes:
    """Return the lines that the router adds to the head of a request."""
    found = route(model)
    lines = found.request_lines + credentials(ROUTER_ROOTS).lines({}, found.deployment, CALLER)
    return lines + TimeLeft(600).line()


def write_requests() -> dict[str, bytes]:
    return {
        model: b"".join(client_request(model).message(head_lines(model))) for model in ("llama-chat", ADAPTER)
    }


def write_resumes() -> dict[str, bytes]:
    contents = {}
    logprobs = [
        RepeatedLogprobs(0, [ReportedLogprob(12, -0.5, 1, "matey"), ReportedLogprob(11, -2.0, 2, "")])
    ]
    for case, model, repeated in (
        ("same model", FINGERPRINT.encode(), []),
        ("other model", b"other", []),
        ("log-probabilities", FINGERPRINT.encode(), logprobs),
    ):
        journal = Journal(fingerprint=model, settings=STREAM_SETTINGS.encode())
        first = TokenReport(
            5,
            [11],
            1,
            id="cmpl-first",
            created=1_700_000_000,
            cached_tokens=16,
            prompt_tokens=2,
            prompt_hash=prompt_hash([1, 2]),
        )
        journal.record(first)
        journal.record(TokenReport(5, [12], 1, repeated))
        message = resume_message(client_request("llama-chat"), head_lines("llama-chat"), journal)
        contents[case] = b"".join(message)
    return contents


def asked(request: bytes) -> tuple[EngineServer, bytes]:
    """Return an engine, whose key files the operator wrote, and its answer to a request."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "router"
        file.write_text(config_map("keys")["router"])
        server = EngineServer(key_file=file)
    return server, server.ask(request)


def read_request(content: bytes) -> dict[str, Any]:
    """Return what an engine does with a request: its answer, and what the engine's core gets."""
    server, answer = asked(content)
    message = parse_message(answer)
    read: dict[str, Any] = {"status": message.status, "has reports": REPORT_PREFIX in message.body}
    if message.status != 200:
        return read | {"code": msgspec.json.decode(message.body)["error"]["code"]}
    (request,) = server.host.scripted.requests
    return read | {
        "adapter": request.lora and request.lora.name,
        "prompt": request.prompt,
        "seed": request.params.seed,
        "has the id of the first stream": b'"id":"cmpl-first"' in message.body,
        "text": [
            msgspec.json.decode(line[6:])["choices"][0]["text"]
            for line in message.body.splitlines()
            if line.startswith(b"data: {")
        ],
    }


def at(now: float) -> Callable[[], float]:
    return lambda: now


def write_demand() -> dict[str, bytes]:
    module = "engine_server.router"
    with patch(f"{module}.demand.perf_counter", at(NOW - 60)):
        demand, idle = Demand(), Demand()
    found = directory()
    (endpoint,) = route_of(found).endpoints
    for _ in range(3):
        demand.begin(KEY)
    endpoint.count(NOW, 0)
    endpoint.count(NOW, 0)
    with patch(f"{module}.routing.endpoint.perf_counter", at(NOW - 0.5)):
        endpoint.record_report(EngineReport(b"model", load=ReportedLoad(2, 0, 6, 0.25)))
    with (
        patch(f"{module}.demand_page.perf_counter", at(NOW)),
        patch(f"{module}.demand.perf_counter", at(NOW)),
    ):
        return {
            "requests": DemandPage(demand, found, lambda: {KEY: 1}).render(),
            "idle": DemandPage(idle, directory(), dict).render(),
        }


def route_of(found: Directory) -> Route:
    (only,) = found.routes
    return only


def read_demand(content: bytes) -> dict[str, Any]:
    report = msgspec.json.decode(content, type=DemandReport)
    scale = scale_of(MANIFEST)
    assert scale is not None
    sample = sample_of(by_deployment([report])[KEY], scale, is_complete=True, now=NOW)
    return {
        "requests": sample.load.requests,
        "kv": sample.load.kv,
        "idle seconds": sample.idle_seconds,
        "by host": requests_by_host(KEY, [report]),
    }


def write_usage() -> dict[str, bytes]:
    with patch("engine_server.router.callers.ledger.token_hex", lambda _: "0123456789abcdef"):
        ledger = used_ledger({"a": 2, "b": 1})
    return {"two keys": msgspec.json.encode(ledger.report(NOW + 1))}


def used_ledger(requests: Mapping[str, int]) -> Ledger:
    """Return the ledger of a router whose keys have so many requests in flight."""
    ledger = Ledger(NOW)
    ledger.put(
        KeyEntry(name=name, sha256=digit * 64, concurrency=4) for name, digit in (("a", "0"), ("b", "1"))
    )
    for name, count in requests.items():
        for _ in range(count):
            ledger.accounts[name].admit(NOW)
    return ledger


def read_usage(content: bytes) -> dict[str, Any]:
    ledger = used_ledger({})
    ledger.balance([msgspec.json.decode(content, type=UsageReport)], NOW + 1)
    return {
        name: {
            "in flight": account.in_flight_elsewhere,
            "last minute": account.counts(NOW + 1).requests_last_minute,
        }
        for name, account in ledger.accounts.items()
    }


def write_root_keys() -> dict[str, bytes]:
    return {"router": b"\n".join(ROUTER_ROOTS), "admin": b"\n".join(ADMIN_ROOTS)}


def read_root_keys(content: bytes) -> dict[str, str]:
    """Return what the router sends to engines in a cluster, and where there is no UID."""
    sender = credentials(tuple(content.splitlines()))
    local = replace(DEPLOYMENT, key=KEY._replace(namespace="default"), uid="")
    return {
        name: sender.lines({}, deployment, ANYONE).decode()
        for name, deployment in (("cluster", DEPLOYMENT), ("local", local))
    }


EXCHANGES = (
    Exchange("request", "router -> engine", write_requests, read_request, "request"),
    Exchange("resume", "router -> engine", write_resumes, read_request, "request"),
    Exchange("demand", "router -> operator", write_demand, read_demand, "demand"),
    Exchange("usage", "router -> router", write_usage, read_usage),
    Exchange(
        "root-keys", "Secret of operator or user -> router", write_root_keys, read_root_keys, "root_keys"
    ),
)
