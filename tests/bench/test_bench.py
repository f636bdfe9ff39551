"""`fairlead bench` against a small real HTTP server with OpenAI's API."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from engine_server import bench

TOKENS_PER_WORD = 2


class Endpoint:
    """A server that streams the requested number of words."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, object]] = []
        self.open = self.most_open = 0
        self.status = 200
        self.break_off = False

    async def completions(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        if self.status != 200:
            return web.json_response({"error": {"message": "busy"}}, status=self.status)
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        count = int(body["max_tokens"])
        for index in range(count):
            await self.event(response, {"choices": [{"text": f" {index}"}]})
            if self.break_off:
                await self.event(response, {"error": {"message": "the engine died"}})
                break
        usage = {"prompt_tokens": TOKENS_PER_WORD * len(body["prompt"].split()), "completion_tokens": count}
        await self.event(response, {"choices": [], "usage": usage})
        await response.write(b"data: [DONE]\n\n")
        self.open -= 1
        return response

    async def event(self, response: web.StreamResponse, content: object) -> None:
        await response.write(b"data: " + json.dumps(content).encode() + b"\n\n")


@pytest.fixture
def endpoint() -> Endpoint:
    return Endpoint()


@pytest.fixture
async def url(endpoint: Endpoint) -> AsyncIterator[str]:
    application = web.Application()
    application.router.add_post("/v1/completions", endpoint.completions)
    async with TestServer(application) as server:
        yield str(server.make_url(""))


def load(url: str, **changes: object) -> bench.Load:
    settings: dict[str, object] = {"model": "m", "input_tokens": 20, "output_tokens": 5, "seed": 0} | changes
    return bench.Load(base_url=url.rstrip("/"), **settings)  # type: ignore[arg-type]


async def test_each_concurrency_gives_a_row_of_complete_requests(endpoint: Endpoint, url: str) -> None:
    rows = await bench.bench(load(url), [1, 3], 7)
    assert [(row.concurrency, row.requests, row.errors) for row in rows] == [(1, 7, 0), (3, 7, 0)]
    assert all(row.prompt_tokens == 20 and row.output_tokens == 5 for row in rows)  # words were calibrated
    assert endpoint.most_open <= 3
    assert all(body["ignore_eos"] is True and body["stream"] is True for body in endpoint.bodies)
    prompts = [body["prompt"] for body in endpoint.bodies]
    assert len(set(prompts)) >= 14


async def test_same_seed_sends_the_same_prompts(endpoint: Endpoint, url: str) -> None:
    async def prompts(seed: int) -> list[object]:
        endpoint.bodies.clear()
        await bench.bench(load(url, seed=seed), [2], 4)
        return sorted(str(body["prompt"]) for body in endpoint.bodies[-4:])

    first = await prompts(1)
    assert await prompts(1) == first
    assert await prompts(2) != first


async def test_error_event_in_a_stream_counts_as_an_error(endpoint: Endpoint, url: str) -> None:
    endpoint.break_off = True
    with pytest.raises(bench.BenchError, match="the engine died"):
        await bench.bench(load(url), [1], 1)


async def test_refused_first_request_ends_the_run_with_its_message(endpoint: Endpoint, url: str) -> None:
    endpoint.status = 503
    with pytest.raises(bench.BenchError, match=r"the first request failed: 503: .*busy"):
        await bench.bench(load(url), [1], 1)


def test_unreachable_address_ends_the_run_with_a_message(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["--base-url", "http://127.0.0.1:1", "--model", "m"]) == 1
    assert "the first request failed: ClientConnectorError" in capsys.readouterr().err


def test_failed_requests_are_excluded_from_the_figures() -> None:
    good = bench.Answer(sent=10.0, arrivals=[10.5, 10.6, 10.8], prompt_tokens=4, output_tokens=3)
    bad = bench.Answer(sent=10.0, error="503: busy")
    row = bench.summarize(2, [good, bad, bad], 2.0)
    assert (row.requests, row.errors, row.requests_per_second, row.output_tokens_per_second) == (
        3,
        2,
        0.5,
        1.5,
    )
    assert (row.ttft_p50, row.ttft_p99) == (500.0, 500.0)
    assert (row.inter_token_p50, row.inter_token_p99) == (100.0, 200.0)
    assert row.first_errors == ("503: busy",)


@pytest.mark.parametrize(("percent", "value"), [(1, 1), (50, 50), (99, 99), (100, 100)])
def test_percentiles_are_measured_values(percent: int, value: float) -> None:
    assert bench.percentile(list(range(100, 0, -1)), percent) == value
    assert bench.percentile([], percent) == 0


def test_saved_result_has_everything_to_repeat_the_run(tmp_path: Path) -> None:
    argv = ["--base-url", "http://a", "--model", "two words"]
    saved = json.loads(json.dumps(bench.result(load("http://a"), [bench.summarize(1, [], 1.0)], argv)))
    assert saved["command"] == "fairlead bench --base-url http://a --model 'two words'"
    assert saved["machine"]["cores"] and saved["versions"]["fairlead"] and saved["date"]
    assert saved["rows"][0]["concurrency"] == 1


@pytest.mark.parametrize("argument", ["0", "-3", "x"])
def test_concurrency_below_one_is_refused(argument: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        bench.main(["--base-url", "http://a", "--model", "m", "--concurrency", argument])
    assert "--concurrency" in capsys.readouterr().err
