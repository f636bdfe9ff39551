"""What a client is told when its request cannot be served."""

import json
import re

import pytest

from engine_server.router.http.downstream import Limits

POST = b'POST /v1/completions HTTP/1.1\r\nContent-Length: 13\r\n\r\n{"model":"m"}'


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        (b'{"model":"m"', None, "not JSON"),
        (b"", None, "not JSON"),
        (b"\xff\xfe", None, "not JSON"),
        (b"[1]", "model", "object"),
        (b"{}", "model", "model"),
        (b'{"model":7}', "model", "str"),
        (b'{"model":null}', "model", "str"),
    ],
)
async def test_bad_bodies(start_engine, start_router, body, param, words):
    engine = await start_engine()
    router = await start_router({"m": [engine]})
    async with router.session.post(f"{router.url}/v1/completions", data=body) as response:
        assert response.status == 400
        error = (await response.json())["error"]
    assert error["type"] == "invalid_request_error" and error["param"] == param and words in error["message"]
    assert not engine.received


async def test_an_unknown_model_is_told_the_known_names(start_engine, start_router):
    engine = await start_engine()
    router = await start_router({"alpha": [engine], "beta": [engine]})
    async with router.chat("gamma") as response:
        assert response.status == 404
        error = (await response.json())["error"]
    assert error["code"] == "model_not_found" and error["param"] == "model"
    assert "'gamma'" in error["message"] and "alpha, beta" in error["message"]


async def test_no_replica_is_503_with_retry_after(start_engine, start_router):
    router = await start_router({"m": [await start_engine(ready=False)]})
    async with router.chat() as response:
        assert response.status == 503
        assert int(response.headers["Retry-After"]) >= 1
        assert (await response.json())["error"]["code"] == "no_replica"


async def test_an_endpoint_is_used_once_it_says_that_it_is_ready(start_engine, start_router, eventually):
    engine = await start_engine(ready=False)
    router = await start_router({"m": [engine]})
    await eventually(lambda: engine.probes > 1)
    assert not engine.received
    engine.ready = True

    async def answered() -> bool:
        async with router.chat() as response:
            return response.status == 200

    await eventually(answered)


@pytest.mark.parametrize(
    ("method", "path", "status", "allow"),
    [
        ("GET", "/nope", 404, None),
        ("HEAD", "/nope", 404, None),
        ("POST", "/", 404, None),
        ("GET", "/v1/chat/completions", 405, "POST"),
        ("DELETE", "/v1/models", 405, "GET, HEAD"),
        ("POST", "/health", 405, "GET, HEAD"),
        ("HEAD", "/health", 200, None),
    ],
)
async def test_paths_and_methods(start_router, method, path, status, allow):
    router = await start_router()
    for _ in range(2):  # the connection goes on being good
        async with router.session.request(method, router.url + path) as response:
            assert response.status == status
            assert response.headers.get("Allow") == allow
            body = await response.read()
    assert (body == b"") == (method == "HEAD")


@pytest.mark.parametrize("declared", [True, False])
async def test_a_body_over_the_limit(start_engine, start_router, declared):
    engine = await start_engine()
    router = await start_router({"m": [engine]}, limits=Limits(body=1000))
    exactly = b'{"model":"m","prompt":"%b"}' % (b"x" * 975)
    assert len(exactly) == 1000

    async def pieces(data):
        yield data

    async with router.session.post(
        f"{router.url}/v1/x", data=exactly if declared else pieces(exactly)
    ) as response:
        assert response.status == 200
    over = exactly + b" "
    async with router.session.post(f"{router.url}/v1/x", data=over if declared else pieces(over)) as response:
        assert response.status == 413
        assert "1000" in (await response.json())["error"]["message"]
        assert response.headers["Connection"] == "close"
    assert len(engine.received) == 1


async def test_a_client_reads_why_although_it_is_still_sending(start_router):
    router = await start_router(limits=Limits(body=1000))
    reader, writer = await router.connect()
    writer.write(b"POST /v1/x HTTP/1.1\r\nContent-Length: 8000000\r\n\r\n" + b"x" * 8_000_000)
    assert (await reader.readline()).startswith(b"HTTP/1.1 413")
    writer.close()


@pytest.mark.parametrize(
    "line", [b"X: " + b"x" * 600_000, b"X: x\r\n" * 100_000], ids=["one line", "many lines"]
)
@pytest.mark.parametrize("end", [b"\r\n\r\n", b""], ids=["ended", "open"])
async def test_a_head_over_the_limit(start_router, line, end):
    router = await start_router()
    said = await router.raw(b"POST /v1/x HTTP/1.1\r\n" + line + end)
    assert said.startswith(b"HTTP/1.1 431") and b"65536" in said


async def test_a_head_over_the_limit_that_comes_at_once(start_router):
    router = await start_router(limits=Limits(head=1000))
    said = await router.raw(b"POST /v1/x HTTP/1.1\r\nX: " + b"x" * 1000 + b"\r\n\r\n")
    assert said.startswith(b"HTTP/1.1 431")


@pytest.mark.parametrize(
    "said",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"POST /v1/x HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST /v1/x HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
        b"POST /v1/x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"CONNECT a:1 HTTP/1.1\r\n\r\n",
    ],
    ids=["tls", "two framings", "two lengths", "bad chunk", "connect"],
)
async def test_what_is_not_a_request(start_router, said):
    router = await start_router()
    answer = await router.raw(said)
    assert answer.startswith(b"HTTP/1.1 400") and b"Connection: close" in answer
    json.loads(answer.partition(b"\r\n\r\n")[2])


async def test_answers_under_way_come_before_a_refusal(start_engine, start_router):
    router = await start_router({"m": [await start_engine()]})
    said = await router.raw(POST + b"nonsense\r\n\r\n")
    assert re.findall(rb"HTTP/1.1 (\d+)", said) == [b"200", b"400"]
