"""`fairlead bench` against a small real HTTP server with OpenAI's API."""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from engine_server.bench.apis import APIS
from engine_server.bench.arrivals import Arrivals, Clients, Poisson
from engine_server.bench.client import Answer, record
from engine_server.bench.command import main, result
from engine_server.bench.load import Load, Words, conversations
from engine_server.bench.rows import Measurement, percentile, summarize
from engine_server.bench.run import BenchError, bench

TOKENS_PER_WORD = 2
# Of a conversation, as a chat template adds them.
TEMPLATE_TOKENS = 7
KEY = "sk-secret-5f9c"


class Endpoint:
    """A server that streams the requested number of words."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.open = self.most_open = 0
        self.status = 200
        self.break_off = False
        # The prompt whose request gets no answer.
        self.held: str | None = None
        self.holds = asyncio.Event()
        self.released = asyncio.Event()

    async def completions(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        num_tokens = TOKENS_PER_WORD * len(body["prompt"].split())
        return await self.answer(request, body, num_tokens, lambda text: {"text": text})

    async def chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        words = [word for message in body["messages"] for word in message["content"].split()]
        num_tokens = TOKENS_PER_WORD * len(words) + TEMPLATE_TOKENS
        return await self.answer(request, body, num_tokens, lambda text: {"delta": {"content": text}})

    async def answer(
        self, request: web.Request, body: dict[str, Any], num_tokens: int, choice: Any
    ) -> web.StreamResponse:
        self.bodies.append(body)
        self.keys.append(request.headers.get("Authorization"))
        if self.status != 200:
            message = f"busy; the key was {self.keys[-1]}"
            return web.json_response({"error": {"message": message}}, status=self.status)
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        if self.held is not None and body["prompt"] == self.held:
            self.holds.set()
            await self.released.wait()
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        count = int(body["max_tokens"])
        for index in range(count):
            await self.event(response, {"choices": [choice(f" {index}")]})
            if self.break_off:
                await self.event(response, {"error": {"message": "the engine died"}})
                break
        usage = {
            "prompt_tokens": num_tokens,
            "completion_tokens": count,
            "prompt_tokens_details": {"cached_tokens": num_tokens // 2},
        }
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
    application.router.add_post("/v1/chat/completions", endpoint.chat)
    async with TestServer(application) as server:
        yield str(server.make_url(""))


def load_of(url: str, **changes: Any) -> Load:
    settings: dict[str, Any] = {"model": "m", "input_tokens": 20, "output_tokens": 5, "seed": 0} | changes
    return Load(base_url=url.rstrip("/"), **settings)


async def rows_of(load: Load, arrivals: list[Arrivals], count: int, api_key: str = "") -> list[Measurement]:
    rows: list[Measurement] = []
    await bench(load, arrivals, rows, count, api_key)
    return rows


async def run_command(*argv: str) -> int:
    """Run the command in a thread, so that the endpoint can answer it."""
    return await asyncio.to_thread(main, ["--model=m", "--input-tokens=20", "--output-tokens=5", *argv])


async def test_each_number_of_clients_gives_a_row_of_complete_requests(endpoint: Endpoint, url: str) -> None:
    rows = await rows_of(load_of(url), [Clients(1), Clients(3)], 7)
    assert [(row.load, row.requests, row.errors) for row in rows] == [("1", 7, 0), ("3", 7, 0)]
    # Words were calibrated.
    assert all((row.prompt_tokens, row.cached_tokens, row.output_tokens) == (20, 10, 5) for row in rows)
    assert endpoint.most_open <= 3
    assert all(body["ignore_eos"] is True and body["stream"] is True for body in endpoint.bodies)
    prompts = [body["prompt"] for body in endpoint.bodies]
    assert len(set(prompts)) >= 14


async def test_same_seed_sends_the_same_prompts(endpoint: Endpoint, url: str) -> None:
    async def prompts(seed: int) -> list[str]:
        endpoint.bodies.clear()
        await rows_of(load_of(url, seed=seed), [Clients(2)], 4)
        return sorted(str(body["prompt"]) for body in endpoint.bodies[-4:])

    first = await prompts(1)
    assert await prompts(1) == first
    assert await prompts(2) != first


async def test_chat_sends_messages_of_the_requested_length(endpoint: Endpoint, url: str) -> None:
    (row,) = await rows_of(load_of(url, api="chat", input_tokens=31), [Clients(2)], 4)
    assert (row.requests, row.errors, row.prompt_tokens, row.output_tokens) == (4, 0, 31, 5)
    (message,) = endpoint.bodies[-1]["messages"]
    assert message["role"] == "user" and "prompt" not in endpoint.bodies[-1]


async def test_field_that_other_servers_refuse_can_be_left_out(endpoint: Endpoint, url: str) -> None:
    assert await run_command(f"--base-url={url}", "--concurrency=1", "--no-ignore-eos") == 0
    assert endpoint.bodies and all("ignore_eos" not in body for body in endpoint.bodies)


async def test_turns_of_a_chat_carry_the_whole_history(endpoint: Endpoint, url: str) -> None:
    load = load_of(url, api="chat", input_tokens=27, turns=3, turn_tokens=8)
    (row,) = await rows_of(load, [Clients(1)], 2)
    turns = [body["messages"] for body in endpoint.bodies[-3:]]

    assert row.requests == 6
    assert [[message["role"] for message in messages] for messages in turns] == [
        ["user"],
        ["user", "assistant", "user"],
        ["user", "assistant", "user", "assistant", "user"],
    ]
    assert turns[1][:1] == turns[0] and turns[2][:3] == turns[1]
    assert turns[1][1]["content"] == " 0 1 2 3 4"
    assert [len(messages[-1]["content"].split()) for messages in turns] == [10, 4, 4]


async def test_turns_of_completions_extend_one_text(endpoint: Endpoint, url: str) -> None:
    await rows_of(load_of(url, turns=2, turn_tokens=8), [Clients(1)], 1)
    first, second = (body["prompt"] for body in endpoint.bodies[-2:])
    assert second.startswith(f"{first} 0 1 2 3 4 ")
    assert len(second.split()) == 10 + 5 + 4


async def test_failed_turn_ends_its_conversation(endpoint: Endpoint, url: str) -> None:
    class FailingEndpoint(Clients):
        async def run(self, *arguments: Any) -> None:
            endpoint.break_off = True
            await super().run(*arguments)

    (row,) = await rows_of(load_of(url, turns=3), [FailingEndpoint(1)], 2)
    assert (row.requests, row.errors) == (2, 2)


async def test_rate_gives_a_row_of_all_requests(endpoint: Endpoint, url: str) -> None:
    (row,) = await rows_of(load_of(url), [Poisson(500.0)], 6)
    assert (row.load, row.requests, row.errors) == ("500/s", 6, 0)


async def test_arrivals_at_a_rate_wait_for_no_answer() -> None:
    all_begun = asyncio.Barrier(5)

    async def converse(texts: list[str]) -> None:
        await all_begun.wait()

    await Poisson(1000.0).run([["text"]] * 5, 0, converse)


def test_arrivals_at_a_rate_depend_on_the_seed_and_have_its_mean() -> None:
    def offsets(seed: int, count: int) -> list[float]:
        return list(islice(Poisson(4.0).offsets(seed), count))

    assert offsets(1, 10) == offsets(1, 10) != offsets(2, 10)
    many = offsets(1, 20_000)
    assert len(many) / many[-1] == pytest.approx(4.0, rel=0.03)
    gaps = [later - earlier for earlier, later in pairwise(many)]
    # Of an exponential distribution, the share 1/e is longer than the mean.
    assert sum(gap > 0.25 for gap in gaps) / len(gaps) == pytest.approx(0.368, abs=0.02)


@pytest.mark.parametrize("source", ["flag", "environment"])
async def test_key_is_sent_and_never_shown(
    source: str,
    endpoint: Endpoint,
    url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    flags = [f"--api-key={KEY}"] if source == "flag" else []
    if source == "environment":
        monkeypatch.setenv("FAIRLEAD_API_KEY", f"{KEY}\n")
    output = tmp_path / "result.json"
    common = [f"--base-url={url}", "--concurrency=1", "--requests=1", f"--output={output}", *flags]

    assert await run_command(*common) == 0
    endpoint.status = 401
    assert await run_command(*common) == 1

    assert set(endpoint.keys) == {f"Bearer {KEY}"}
    shown = capsys.readouterr()
    assert "the key was Bearer ***" in shown.err
    assert KEY not in output.read_text() + shown.out + shown.err


async def test_interrupt_keeps_the_rows_and_the_answers_of_the_row_in_progress(
    endpoint: Endpoint, url: str, tmp_path: Path
) -> None:
    endpoint.held = next(islice(conversations(load_of(url), Words(10, 1), "1"), 2, None))[0]
    output = tmp_path / "result.json"
    command = [sys.executable, "-m", "engine_server.cli", "bench", f"--base-url={url}", "--model=m"]
    command += ["--input-tokens=20", "--output-tokens=5", "--concurrency", "2", "1", "--requests=3"]
    process = await asyncio.create_subprocess_exec(
        *command, f"--output={output}", stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    await endpoint.holds.wait()
    process.send_signal(signal.SIGINT)
    printed, errors = await process.communicate()
    endpoint.released.set()

    assert process.returncode == 130
    assert "Traceback" not in errors.decode() and "rows so far: 2" in errors.decode()
    assert len(printed.splitlines()) == 3
    saved = json.loads(output.read_text())
    assert saved["interrupted"] is True
    assert [(row["load"], row["requests"], row["errors"]) for row in saved["rows"]] == [
        ("2", 3, 0),
        ("1", 2, 0),
    ]


async def test_error_event_in_a_stream_counts_as_an_error(endpoint: Endpoint, url: str) -> None:
    endpoint.break_off = True
    with pytest.raises(BenchError, match="the engine died"):
        await rows_of(load_of(url), [Clients(1)], 1)


async def test_refused_first_request_ends_the_run_with_its_message(endpoint: Endpoint, url: str) -> None:
    endpoint.status = 503
    with pytest.raises(BenchError, match=r"the first request failed: 503: .*busy"):
        await rows_of(load_of(url), [Clients(1)], 1)


def test_unreachable_address_ends_the_run_with_a_message(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--base-url", "http://127.0.0.1:1", "--model", "m"]) == 1
    assert "the first request failed: ClientConnectorError" in capsys.readouterr().err


def test_failed_requests_are_excluded_from_the_figures() -> None:
    good = Answer(sent=10.0, arrivals=[10.5, 10.6, 10.8], prompt_tokens=4, output_tokens=3)
    bad = Answer(sent=10.0, error="503: busy")
    row = summarize("2", [good, bad, bad], 2.0)
    assert (row.requests, row.errors, row.requests_per_second, row.output_tokens_per_second) == (
        3,
        2,
        0.5,
        1.5,
    )
    assert (row.ttft_p50, row.ttft_p99) == (500.0, 500.0)
    assert (row.inter_token_p50, row.inter_token_p99) == (100.0, 200.0)
    assert row.first_errors == ("503: busy",)


def test_reasoning_of_a_chat_is_an_arrival_but_no_text_of_the_conversation() -> None:
    answer = Answer(sent=0.0)
    for delta in (
        {"role": "assistant"},
        {"reasoning_content": "Hm"},
        {"reasoning": "Hm"},
        {"content": "Yes"},
    ):
        record(answer, APIS["chat"], {"choices": [{"delta": delta}]})
    assert (len(answer.arrivals), answer.text) == (3, "Yes")


@pytest.mark.parametrize(("percent", "value"), [(1, 1), (50, 50), (99, 99), (100, 100)])
def test_percentiles_are_measured_values(percent: int, value: float) -> None:
    assert percentile(list(range(100, 0, -1)), percent) == value
    assert percentile([], percent) == 0


def test_saved_result_has_everything_to_repeat_the_run() -> None:
    argv = ["--base-url", "http://a", "--model", "two words"]
    saved = json.loads(json.dumps(result(load_of("http://a"), [summarize("1", [], 1.0)], argv, False)))
    assert saved["command"] == "fairlead bench --base-url http://a --model 'two words'"
    assert saved["machine"]["cores"] and saved["versions"]["fairlead"] and saved["date"]
    assert saved["rows"][0]["load"] == "1"


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--concurrency", "0"),
        ("--concurrency", "-3"),
        ("--concurrency", "x"),
        ("--request-rate", "0"),
        ("--request-rate", "nan"),
        ("--request-rate", "inf"),
    ],
)
def test_amount_that_is_not_positive_is_refused(
    flag: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["--base-url", "http://a", "--model", "m", flag, value])
    assert flag in capsys.readouterr().err


def test_clients_and_a_rate_exclude_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--base-url", "http://a", "--model", "m", "--concurrency", "1", "--request-rate", "1"])
    assert "not allowed with" in capsys.readouterr().err
