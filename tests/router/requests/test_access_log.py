"""Lines of the access log, and when they are written."""

import asyncio
import io
import json
from datetime import UTC, datetime

import msgspec

from engine_server.router.requests import access_log
from engine_server.router.requests.access_log import RENDERERS, Access, AccessLog, logged_path

REFUSED = Access(datetime(2026, 1, 2, 3, 4, 5, 678000, UTC), "GET", "/nope", 404, "id-1", 0.00012)
ANSWERED = Access(
    datetime(2026, 1, 2, 3, 4, 6, tzinfo=UTC),
    "POST",
    "/v1/chat/completions",
    200,
    "id-2",
    1.5,
    seconds_to_first_byte=0.25,
    model="smollm2",
    deployment="default/smollm2",
    adapter="sql",
    endpoint="http://10.0.0.1:8000",
    attempts=2,
    prompt_tokens=12,
    completion_tokens=80,
    key="team-a",
)


def test_text_has_a_line_for_each_request():
    # These times in this machine's zone.
    local = [
        msgspec.structs.replace(each, time=each.time.replace(tzinfo=None).astimezone())
        for each in (REFUSED, ANSWERED)
    ]
    assert RENDERERS["text"](local).splitlines() == [
        "2026-01-02 03:04:05,678 INFO router: GET /nope 404 0.000120 s id=id-1",
        "2026-01-02 03:04:06,000 INFO router: POST /v1/chat/completions 200 1.500000 s id=id-2 first_byte=0.250000 "
        "model=smollm2 deployment=default/smollm2 adapter=sql endpoint=http://10.0.0.1:8000 attempts=2 "
        "prompt_tokens=12 completion_tokens=80 key=team-a",
    ]


def test_json_has_an_object_for_each_request_without_fields_that_do_not_apply():
    refused, answered = map(json.loads, RENDERERS["json"]([REFUSED, ANSWERED]).splitlines())
    assert refused == {
        "time": "2026-01-02T03:04:05.678000Z",
        "method": "GET",
        "path": "/nope",
        "status": 404,
        "request_id": "id-1",
        "seconds": 0.00012,
    }
    assert answered["deployment"] == "default/smollm2" and answered["completion_tokens"] == 80


def test_path_is_logged_without_query_control_characters_or_excess():
    assert logged_path(b"/v1/models?api_key=secret") == "/v1/models"
    assert logged_path("/\x9b2J\xe9".encode("latin-1")) == r"/\x9b2J\xe9"
    assert len(logged_path(b"/" + b"a" * 60_000)) == 256


async def test_writes_several_lines_at_a_time_and_each_within_the_interval(monkeypatch, eventually):
    output = io.StringIO()
    log = AccessLog(output, RENDERERS["json"])
    for _ in range(access_log.BATCH_SIZE - 1):
        log.record(REFUSED)
    assert output.getvalue() == ""
    log.record(REFUSED)
    assert output.getvalue().count("\n") == access_log.BATCH_SIZE
    monkeypatch.setattr(access_log, "FLUSH_SECONDS", 0.001)
    log.record(ANSWERED)
    await eventually(lambda: output.getvalue().count("\n") == access_log.BATCH_SIZE + 1)


async def test_flush_writes_what_waits():
    output = io.StringIO()
    log = AccessLog(output, RENDERERS["text"])
    log.record(REFUSED)
    log.flush()
    await asyncio.sleep(0)
    log.flush()
    assert output.getvalue().count("\n") == 1
