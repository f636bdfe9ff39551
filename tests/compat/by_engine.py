"""Exchanges that engines write, and the containers that fetch their models."""

import re
import tempfile
import urllib.request
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import msgspec
from compat.exchange import Exchange
from compat.http_text import HttpMessage, parse_message
from compat.sample import ADAPTER, ADAPTER_URI, ADDRESS, DEPLOYMENT, KEY, MANIFEST, observe, planned
from compat.scripted_engine import MISSING_URI, EngineServer
from llm_local.endpoints import ModelList
from llm_operator.control.fetch_poller import FetchProgress
from llm_operator.control.start_poller import Readiness
from llm_operator.observed import PodAdapters, Replica, StartReport
from llm_operator.status.adapters import served_adapters
from llm_operator.status.problems import exit_problem
from llm_operator.status.start import last_start

from engine_server.contract.cluster.adapters import AdapterStates, WantedAdapter, WantedAdapters
from engine_server.contract.cluster.memory_shortage import MemoryShortage
from engine_server.contract.wire.engine_report import EngineReport, ReportedLoad
from engine_server.contract.wire.errors import ErrorCode
from engine_server.model_sources.progress import Progress
from engine_server.model_sources.progress_server import serve
from engine_server.router.http.forwarded_fields import ANSWER_FIELDS
from engine_server.router.http.wire import Fields
from engine_server.router.requests.event_reader import EventReader
from engine_server.router.requests.journal import Journal
from engine_server.router.requests.outcome import REFUSAL_STATUSES, read_refusal
from engine_server.router.routing.endpoint import Address, Endpoint
from engine_server.server.gate import Drain

STARTED = "2026-01-01T00:01:00Z"
REPLICA = Replica("llama-engine-1", STARTED, ADDRESS)
POD = {
    "metadata": {"name": REPLICA.pod, "creationTimestamp": "2026-01-01T00:00:00Z"},
    "status": {
        "podIP": ADDRESS,
        "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:02:00Z"}],
        "containerStatuses": [{"name": "engine", "state": {"running": {"startedAt": STARTED}}}],
    },
}
CLOCK = SimpleNamespace(time=lambda: 1_700_000_000.0)
CLOCK_OF_ANSWERS = "engine_server.server.api.read_request.time"


def completion(model: str, *headers: str, path: str = "/v1/completions", **fields: object) -> bytes:
    body = {"model": model, "prompt": [1, 2], "request_id": "r1", "seed": 5, **fields}
    lines = (f"POST {path} HTTP/1.1", "X-Request-Id: r1", "Content-Type: application/json", *headers, "", "")
    return "\r\n".join(lines).encode() + msgspec.json.encode(body)


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nX-Request-Id: r1\r\n\r\n".encode()


def loading_server() -> EngineServer:
    server = EngineServer()
    server.host.phase, server.host.phase_seconds, server.host.loaded = "load", {"import": 1.5}, 0.42
    return server


def draining_server() -> EngineServer:
    server = EngineServer()
    server.gate.drain = Drain.CLOSED
    return server


def write_answers() -> dict[str, bytes]:
    """Return answers of each kind that a router tells apart."""
    full, failing = EngineServer(), EngineServer()
    full.host.scripted.is_full = True
    failing.host.scripted.finish_reason = "abort"
    reported = "Fairlead-Report-Tokens: 1"
    resume = {"resume": {"id": "a", "created": 1, "seed": 5, "model": "b", "token_ids": [11], "events": 1}}
    with patch(CLOCK_OF_ANSWERS, CLOCK):
        return {
            "whole": EngineServer().ask(completion(str(KEY))),
            "of an adapter": EngineServer().ask(
                completion("x", f"Fairlead-Deployment: {KEY}", f"Fairlead-Adapter: {ADAPTER}")
            ),
            "stream": EngineServer().ask(completion(str(KEY), reported, stream=True)),
            "stream without reports": EngineServer().ask(completion(str(KEY), stream=True)),
            "stream of two prompts": EngineServer().ask(
                completion(str(KEY), reported, stream=True, prompt=[[1, 2], [3]])
            ),
            "stream that breaks off": failing.ask(completion(str(KEY), reported, stream=True)),
            "loading": loading_server().ask(completion(str(KEY))),
            "draining": draining_server().ask(completion(str(KEY))),
            "draining, messages": draining_server().ask(completion(str(KEY), path="/v1/messages")),
            "queue full": full.ask(completion(str(KEY))),
            "unknown model": EngineServer().ask(completion("x")),
            "other model": EngineServer().ask(
                completion(str(KEY), "Fairlead-Resume: 1", stream=True, fairlead=resume)
            ),
        }


def read_answer(content: bytes) -> dict[str, Any]:
    """Return all that a router takes from an answer."""
    answer = parse_message(content)
    fields = Fields(ANSWER_FIELDS)
    for name, value in answer.headers:
        fields.add(name, value)
    lines, read = fields.take_forwarded(), fields.read
    endpoint = Endpoint(KEY, Address(ADDRESS, 8000))
    report = EngineReport.parse(read)
    endpoint.record_report(report)
    usage = report.usage
    found: dict[str, Any] = {
        "model": endpoint.fingerprints.get("", b"").decode(),
        "load": msgspec.structs.asdict(endpoint.reported_load),
        "usage": usage and msgspec.to_builtins(usage),
        "forwards our headers": b"fairlead" in lines.lower(),
    }
    if answer.status in REFUSAL_STATUSES:
        refusal = read_refusal(answer.status, read.get(b"retry-after"), answer.body)
        found["refusal"] = msgspec.to_builtins(refusal)
    if read[b"content-type"].startswith(b"text/event-stream"):
        found["stream"] = read_stream(answer)
    return found


def read_stream(answer: HttpMessage) -> dict[str, Any]:
    """Return what a router forwards of a stream, and what it could continue it with."""
    journal = Journal()
    reader = EventReader(journal)
    forwarded = reader.read(answer.body) + (reader.end() or b"")
    return {
        "forwarded": forwarded.decode(),
        "error": reader.error,
        "journal": {
            "id": journal.id,
            "created": journal.created,
            "seed": journal.seed,
            "token_ids": list(journal.token_ids),
            "events": journal.events,
            "usage": journal.usage and msgspec.to_builtins(journal.usage),
            "ended": journal.ended,
            "complete": journal.complete,
        },
    }


def write_load() -> dict[str, bytes]:
    return {"busy": EngineServer().host.engine_load.report().value().encode()}


def read_load(content: bytes) -> dict[str, Any]:
    return msgspec.structs.asdict(ReportedLoad.parse(content))


def write_error_codes() -> dict[str, bytes]:
    return {"all": msgspec.json.encode({code: code.breaks_off for code in ErrorCode})}


def read_error_codes(content: bytes) -> dict[str, Any]:
    """Return the codes that a router knows, and which of them in a stream let it continue elsewhere."""
    codes = map(ErrorCode.parse, msgspec.json.decode(content))
    return {code: code.breaks_off for code in codes if code is not None}


def write_readiness() -> dict[str, bytes]:
    return {
        case: parse_message(server.ask(get("/ready"))).body
        for case, server in (
            ("loading", loading_server()),
            ("ready", EngineServer()),
            ("draining", draining_server()),
        )
    }


def read_readiness(content: bytes) -> dict[str, Any]:
    """Return what the operator reports about a start."""
    readiness = msgspec.json.decode(content, type=Readiness)
    is_final = readiness.status == "ready"
    report = StartReport(REPLICA, readiness.phase, readiness.percent, readiness.seconds, is_final)
    start = last_start(observe(MANIFEST, pods=(POD,), start_report=report))
    return {
        "status": readiness.status,
        "phase": report.phase,
        "percent": report.percent,
        "start": start and {"loaded": start.loaded, "warmed": start.warmed},
    }


def write_models() -> dict[str, bytes]:
    listed = parse_message(EngineServer().ask(get("/v1/models"))).body
    # The time of the server's start, which nobody reads.
    return {"with an adapter": re.sub(rb'"created":\d+', b'"created":1700000000', listed)}


def read_models(content: bytes) -> dict[str, Any]:
    return {card.id: card.parent for card in msgspec.json.decode(content, type=ModelList).data}


def write_adapter_states() -> dict[str, bytes]:
    wanted = WantedAdapters([WantedAdapter(ADAPTER, ADAPTER_URI), WantedAdapter("gone", MISSING_URI)])
    head = b"PUT /adapters HTTP/1.1\r\nContent-Type: application/json\r\n\r\n"
    first, last = EngineServer().ask_admin(head + msgspec.json.encode(wanted))
    return {"at first": parse_message(first).body, "at last": parse_message(last).body}


def read_adapter_states(content: bytes) -> list[Any]:
    """Return what the operator writes into the status."""
    states = tuple(msgspec.json.decode(content, type=AdapterStates).adapters)
    answers = {REPLICA.pod: PodAdapters(REPLICA, states)}
    observed = observe(MANIFEST, planned(MANIFEST).values(), pods=(POD,), pod_adapters=answers)
    served = msgspec.to_builtins(served_adapters(DEPLOYMENT.spec, observed))
    return [[msgspec.to_builtins(state) for state in states], served]


def write_shortages() -> dict[str, bytes]:
    return {
        device: f"loading\nValueError: weights: {MemoryShortage(9000, 4000, device)}\n".encode()
        for device in ("cuda", "cpu")
    }


def read_shortage(content: bytes) -> dict[str, Any]:
    return exit_problem("engine", {"exitCode": 1, "message": content.decode()})._asdict()


def write_progress() -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "weights").write_bytes(bytes(42))
        progress = Progress(total=100)
        progress.follow(Path(folder))
        server = serve(progress, 0)
        with (
            closing(server.socket),
            urllib.request.urlopen(f"http://127.0.0.1:{server.server_address[1]}/progress") as answer,
        ):
            content: bytes = answer.read()
            server.shutdown()
    return {"42 percent": content}


def read_progress(content: bytes) -> dict[str, Any]:
    return dict(msgspec.to_builtins(msgspec.json.decode(content, type=FetchProgress)))


EXCHANGES = (
    Exchange("answer", "engine -> router", write_answers, read_answer, "answer"),
    Exchange("load", "engine -> router", write_load, read_load),
    Exchange("error-codes", "engine -> router", write_error_codes, read_error_codes),
    Exchange("readiness", "engine -> operator", write_readiness, read_readiness),
    Exchange("models", "engine -> fairlead up", write_models, read_models),
    Exchange(
        "adapter-states", "engine -> operator", write_adapter_states, read_adapter_states, "adapter_states"
    ),
    Exchange(
        "memory-shortage", "engine's last output -> operator", write_shortages, read_shortage, "shortage"
    ),
    Exchange("progress", "fairlead fetch -> operator", write_progress, read_progress),
)
