"""Limits of tokens in front of scripted engines: what requests are charged."""

import asyncio
import logging

import msgspec
import pytest
from router_keys import ask, never_answer, reporting, status_of, usage

from engine_server.contract.wire.continuation import TokenReport
from engine_server.contract.wire.engine_report import ReportedUsage


async def test_tokens_that_the_engine_reports_count_against_the_next_request(
    start_engine, start_router, keys_file
):
    engine = await start_engine(reporting(700, 500))
    router = await start_router(
        {"m": [engine]}, keys_file=keys_file.write({"name": "a", "tokensPerMinute": 600})
    )
    async with ask(router) as response:
        assert response.status == 200 and "Fairlead-Usage" not in response.headers
    async with ask(router) as response:
        assert response.status == 429
        # 1,200 tokens at 10 per second, down to a minute's amount.
        assert 55 <= int(response.headers["Retry-After"]) <= 61
        assert "600 tokens per minute" in (await response.json())["error"]["message"]
    assert len(engine.received) == 1


def streaming(*reports: TokenReport, end: bool = True):
    """Return the behavior of an engine that streams one event for each report."""

    async def behave(engine, request, writer):
        assert request.header("Fairlead-Report-Tokens") == "1"
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        for report in reports:
            data = report.encode() + b"data: 1\n\n"
            writer.write(b"%x\r\n%b\r\n" % (len(data), data))
        if end:
            writer.write(b"0\r\n\r\n")
        else:
            await asyncio.Event().wait()

    return behave


FIRST = TokenReport(seed=1, token_ids=[1, 2, 3], events=1, id="x", created=1)
LAST = TokenReport(seed=1, token_ids=[4], events=1, usage=ReportedUsage(30, 4))


async def tokens(router) -> int:
    return (await usage(router))["a"]["tokens"]


async def test_a_picture_is_charged_by_4_kb_until_its_usage_is_known(
    start_engine, start_router, keys_file, eventually
):
    engine = await start_engine(never_answer)
    file = keys_file.write({"name": "a", "tokensPerMinute": 3000})
    router = await start_router({"m": [engine]}, keys_file=file)
    url = "data:image/png;base64," + "A" * 1_400_000
    messages = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]
    requests = [asyncio.create_task(status_of(ask(router, messages=messages))) for _ in range(2)]

    await eventually(lambda: len(engine.received) == 2)

    for request in requests:
        request.cancel()


async def test_a_burst_is_charged_by_its_bytes_until_its_usage_is_known(
    start_engine, start_router, keys_file, eventually
):
    answers = asyncio.Event()

    async def answer_later(engine, request, writer):
        await answers.wait()
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nFairlead-Usage: prompt=1, completion=1\r\n\r\n{}"
        )

    engine = await start_engine(answer_later)
    file = keys_file.write({"name": "a", "tokensPerMinute": 1000})
    router = await start_router({"m": [engine]}, keys_file=file)
    burst = [asyncio.create_task(status_of(ask(router, prompt="x" * 2400))) for _ in range(2)]
    await eventually(lambda: len(engine.received) == 2)

    async with ask(router, prompt="x" * 2400) as response:
        assert (response.status, response.headers["Retry-After"]) == (429, "1")
    answers.set()

    assert await asyncio.gather(*burst) == [200, 200]
    assert await status_of(ask(router, prompt="x" * 2400)) == 200
    assert await tokens(router) == 6


async def test_usage_beyond_what_a_request_can_have_is_cut_counted_and_logged_once(
    start_engine, start_router, keys_file, caplog
):
    engine = await start_engine(reporting(2**31, 2**31))
    router = await start_router({"m": [engine]}, keys_file=keys_file.write({"name": "a"}))
    with caplog.at_level(logging.WARNING):
        statuses = [await status_of(ask(router)) for _ in range(2)]

    assert statuses == [200, 200]
    assert await tokens(router) == sum(2**20 + 16 * len(request.body) for request in engine.received)
    cut = r'fairlead_router_rejected_total\{reason="usage_cut",sender="engine"\}'
    assert await router.metric(cut) == 2
    assert caplog.text.count("more tokens than the request can have used") == 1


@pytest.mark.parametrize(
    "field", [b"prompt=2147483649, completion=0", b"prompt=" + b"9" * 400 + b", completion=0", b"prompt=-1"]
)
async def test_usage_out_of_range_counts_as_none(start_engine, start_router, keys_file, field):
    async def behave(engine, request, writer):
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nFairlead-Usage: %b\r\n\r\n{}" % field)

    engine = await start_engine(behave)
    router = await start_router({"m": [engine]}, keys_file=keys_file.write({"name": "a"}))
    assert await status_of(ask(router)) == 200

    assert await tokens(router) == len(engine.received[0].body) // 4
    rejected = r'fairlead_router_rejected_total\{reason="out_of_range",sender="engine"\}'
    assert await router.metric(rejected) == 1


@pytest.mark.parametrize(
    "count",
    ["-1000000000000", "9" * 400, "1e400", "null", '0,"unknown":' + "[" * 1500 + "]" * 1500],
    ids=["negative", "long", "infinite", "null", "nested"],
)
async def test_a_report_with_a_usage_out_of_range_neither_charges_nor_credits(
    start_engine, start_router, keys_file, count
):
    report = f': fairlead {{"seed":1,"usage":{{"prompt_tokens":{count},"completion_tokens":0}}}}\n'.encode()

    async def behave(engine, request, writer):
        data = FIRST.encode() + b"data: 1\n\n" + report
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data)
        )

    engine = await start_engine(behave)
    router = await start_router({"m": [engine]}, keys_file=keys_file.write({"name": "a"}))
    async with ask(router, stream=True) as response:
        assert b'"code":"interrupted"' in await response.read()

    assert await tokens(router) == len(engine.received[0].body) // 4 + len(FIRST.token_ids)
    assert (
        await router.metric(r'fairlead_router_rejected_total\{reason="out_of_range",sender="engine"\}') >= 1
    )


async def test_tokens_of_a_stream_are_those_of_its_last_report(start_engine, start_router, keys_file):
    router = await start_router(
        {"m": [await start_engine(streaming(FIRST, LAST))]}, keys_file=keys_file.write({"name": "a"})
    )
    async with ask(router, stream=True, prompt="x" * 4000) as response:
        assert await response.read() == b"data: 1\n\n" * 2
    assert await tokens(router) == 34


async def leave(router, engine, eventually):
    """Leave a stream after its first bytes, and wait until the router has counted its tokens."""
    async with ask(router, stream=True, prompt="x" * 4000) as response:
        await response.content.readany()
    await eventually(engine.hung_up.is_set)

    async def counted() -> bool:
        return await tokens(router) > 0

    await eventually(counted)


async def test_a_stream_that_the_client_leaves_counts_its_tokens_so_far_and_a_prompt_by_its_length(
    start_engine, start_router, keys_file, eventually
):
    engine = await start_engine(streaming(FIRST, end=False))
    router = await start_router({"m": [engine]}, keys_file=keys_file.write({"name": "a"}))
    await leave(router, engine, eventually)
    assert await tokens(router) == len(engine.received[0].body) // 4 + 3


async def test_a_stream_that_the_client_leaves_counts_the_prompt_that_its_first_report_has(
    start_engine, start_router, keys_file, eventually
):
    first = msgspec.structs.replace(FIRST, prompt_tokens=700)
    engine = await start_engine(streaming(first, end=False))
    router = await start_router({"m": [engine]}, keys_file=keys_file.write({"name": "a"}))
    await leave(router, engine, eventually)
    assert await tokens(router) == 703
    counter = r'fairlead_router_tokens_total\{key="a",kind="prompt"\}'
    assert await router.metric(counter) == 700


@pytest.mark.parametrize("together", [False, True], ids=["chunks", "one chunk"])
async def test_tokens_of_a_stream_that_reports_its_usage_alone_are_charged(
    start_engine, start_router, keys_file, together
):
    event, end = b"data: 1\n\n", b"data: [DONE]\n\n"
    last = TokenReport(seed=0, events=1, usage=ReportedUsage(30, 4000)).encode() + end
    chunks = [event + event + last] if together else [event, event, last]

    async def behave(engine, request, writer):
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        for data in (event, *chunks):
            writer.write(b"%x\r\n%b\r\n" % (len(data), data))
        writer.write(b"0\r\n\r\n")

    router = await start_router({"m": [await start_engine(behave)]}, keys_file=keys_file.write({"name": "a"}))
    async with ask(router, stream=True, n=2) as response:
        assert await response.read() == event * 3 + end
    assert await tokens(router) == 4030


@pytest.mark.parametrize(
    "path", ["/v1/messages/count_tokens", "/v1/responses/input_tokens", "/tokenize", "/detokenize"]
)
async def test_counting_tokens_costs_none_before_and_after_the_answer(
    start_engine, start_router, keys_file, eventually, path
):
    answers = asyncio.Event()

    async def answer_later(engine, request, writer):
        await answers.wait()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

    engine = await start_engine(answer_later)
    router = await start_router(
        {"m": [engine]}, keys_file=keys_file.write({"name": "a", "tokensPerMinute": 10})
    )

    burst = [asyncio.create_task(status_of(ask(router, path=path, prompt="x" * 4000))) for _ in range(2)]
    await eventually(lambda: len(engine.received) == 2)
    answers.set()

    assert await asyncio.gather(*burst) == [200, 200]
    assert await tokens(router) == 0


async def test_an_engine_that_reports_no_tokens_is_counted_by_bytes_and_events(
    start_engine, start_router, keys_file
):
    async def answer_whole(engine, request, writer):
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

    async def answer_stream(engine, request, writer):
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        writer.write(b"1b\r\ndata: 1\n\ndata: 2\n\ndata: 3\n\n\r\n0\r\n\r\n")

    engine = await start_engine(answer_whole)
    router = await start_router({"m": [engine]}, keys_file=keys_file.write({"name": "a"}))
    assert await status_of(ask(router, prompt="x" * 400)) == 200
    whole = await tokens(router)
    assert whole == len(engine.received[0].body) // 4
    engine.behave = answer_stream
    assert await status_of(ask(router, prompt="x" * 400, stream=True)) == 200
    assert await tokens(router) - whole == len(engine.received[1].body) // 4 + 3


async def test_a_refused_or_failed_request_uses_no_tokens(start_engine, start_router, keys_file):
    async def refuse(engine, request, writer):
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 2\r\n\r\n{}")

    file = keys_file.write({"name": "a", "tokensPerMinute": 1})
    router = await start_router({"m": [await start_engine(refuse)]}, keys_file=file)
    for model, status in (("m", 400), ("unknown", 404), ("m", 400)):
        assert await status_of(ask(router, model, prompt="x" * 1000)) == status
