"""The time that pictures take, and what they do to other streams.

    python -m benchmarks.pictures [--model smolvlm-256m] [--folder build/pictures] [--rounds 5] [--beside 8000]

first token: chat requests with one new picture of 512 x 512 pixels and one token, beside transformers' processor and
`generate` of one token in another process, in turn. conversation: twelve turns, each with a new PNG of 1280 x 800
pixels and all before it. beside: eight streams of text, without pictures and while a new picture of one tile arrives
every few seconds; the encoder's own time is the server's measure. bodies: eight streams, and a ticker in the API's
event loop, while ten bodies of 31 MiB arrive. broken files: a hundred at once. With --beside, the first token and 32
requests, 8 at a time, each with a new picture and 64 tokens, are measured at another OpenAI-compatible server, too, in
turn: it serves the same folder as `model`. Random weights. Figures are printed and saved under benchmarks/results/.
"""

import argparse
import asyncio
import base64
import io
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp
import numpy as np
import psutil
from PIL import Image
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.http_streams import Server, server, stream
from benchmarks.pictures.models import SHAPES, write_model
from benchmarks.pictures.ticking_server import longest_gaps
from benchmarks.record import save
from engine_server.contract.base.python_module import module_command

FLAGS = ["--dtype=bfloat16", "--max-model-len=8192", "--max-num-seqs=16"]
PATH = "/v1/chat/completions"
TURNS = 12
STREAMS = 8
Figures = dict[str, float]


def png(seed: int, width: int, height: int, noisy: bool = False) -> bytes:
    """Return a picture of a few areas, as screenshots are, or of noise, which has as many bytes as pixels."""
    random = np.random.default_rng(seed)
    size = (height, width) if noisy else (height // 8, width // 8)
    image = Image.fromarray(random.integers(0, 256, (*size, 3), dtype=np.uint8))
    out = io.BytesIO()
    image.resize((width, height), Image.Resampling.NEAREST).save(out, "PNG", compress_level=1)
    return out.getvalue()


def picture(data: bytes) -> dict[str, Any]:
    url = f"data:image/png;base64,{base64.b64encode(data).decode()}"
    return {"type": "image_url", "image_url": {"url": url}}


def body_of(messages: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    return {
        "model": "model",
        "messages": messages,
        "max_tokens": 1,
        "temperature": 0,
        "ignore_eos": True,
        **more,
    }


def asked(*pictures: bytes) -> list[dict[str, Any]]:
    parts = [picture(one) for one in pictures]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": "What is it?"}]}]


async def post(
    session: aiohttp.ClientSession, port: int, body: dict[str, Any]
) -> tuple[int, float, dict[str, Any]]:
    """Return the status, the seconds and the answer of a request."""
    started = time.perf_counter()
    async with session.post(f"http://127.0.0.1:{port}{PATH}", json=body) as answer:
        content = await answer.json()
        return answer.status, time.perf_counter() - started, content


async def first_token(port: int, folder: Path, rounds: int, pictures: Path) -> Figures:
    ours, theirs = [], []
    with transformers_side(folder) as theirs_of:
        async with aiohttp.ClientSession() as session:
            for number in range(rounds + 1):
                data = png(100 + number, 512, 512)
                file = pictures / f"{number}.png"
                file.write_bytes(data)
                theirs.append(await asyncio.to_thread(theirs_of, file))
                status, seconds, answer = await post(session, port, body_of(asked(data)))
                assert status == 200, answer
                ours.append(seconds)
    # The first one of both is the first use of every code path.
    return {
        "first token ms": 1e3 * median(ours[1:]),
        "first token transformers ms": 1e3 * median(theirs[1:]),
        "first token ratio": median(a / b for a, b in zip(ours[1:], theirs[1:], strict=True)),
    }


async def against(ours: int, theirs: int, rounds: int) -> Figures:
    """Compare two servers."""
    ports = {"": ours, " of the other server": theirs}
    seconds: dict[str, list[float]] = {name: [] for name in ports}
    rates: dict[str, list[float]] = {name: [] for name in ports}
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout()) as session:
        for number in range(rounds + 1):
            for name, port in ports.items():
                status, taken, answer = await post(session, port, body_of(asked(png(300 + number, 512, 512))))
                assert status == 200, answer
                seconds[name].append(taken)
        for number in range(rounds):
            for name, port in ports.items():
                rates[name].append(await tokens_per_second(session, port, 30_000 + 100 * number))
    figures = {f"first token in turn{name} ms": 1e3 * median(taken[1:]) for name, taken in seconds.items()}
    return figures | {f"tokens/s{name}": median(found) for name, found in rates.items()}


async def tokens_per_second(session: aiohttp.ClientSession, port: int, seed: int) -> float:
    """Return the rate of 32 requests with a new picture each, 8 at a time."""
    turns = asyncio.Semaphore(8)

    async def send(number: int) -> int:
        async with turns:
            body = body_of(asked(png(seed + number, 512, 512)), max_tokens=64)
            status, _, answer = await post(session, port, body)
        assert status == 200, answer
        return int(answer["usage"]["completion_tokens"])

    started = time.perf_counter()
    counts = await asyncio.gather(*(send(number) for number in range(32)))
    return sum(counts) / (time.perf_counter() - started)


async def encoder_time(session: aiohttp.ClientSession, port: int) -> tuple[float, float]:
    """Return the seconds that the server's encoder has taken so far, and the number of pictures."""
    async with session.get(f"http://127.0.0.1:{port}/metrics") as answer:
        families = text_string_to_metric_families(await answer.text())
    samples = {
        sample.name: sample.value
        for one in families
        for sample in one.samples
        if sample.labels.get("stage") == "encode" and "le" not in sample.labels
    }
    return samples["fairlead:picture_seconds_sum"], samples["fairlead:picture_seconds_count"]


@contextmanager
def transformers_side(folder: Path) -> Iterator[Callable[[Path], float]]:
    process = subprocess.Popen(
        module_command("benchmarks.pictures.transformers_side", str(folder)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    stdin, stdout = process.stdin, process.stdout
    assert stdin is not None and stdout is not None
    while "ready" not in stdout.readline():
        if process.poll() is not None:
            raise RuntimeError("transformers' side has ended")

    def seconds_of(file: Path) -> float:
        print(file, file=stdin, flush=True)
        return float(stdout.readline())

    try:
        yield seconds_of
    finally:
        stdin.close()
        process.wait()


async def conversation(port: int) -> Figures:
    messages: list[dict[str, Any]] = []
    seconds = []
    async with aiohttp.ClientSession() as session:
        for turn in range(TURNS):
            messages += asked(png(1000 + turn, 1280, 800))
            status, taken, answer = await post(session, port, body_of(messages))
            assert status == 200, answer
            seconds.append(taken)
            messages.append({"role": "assistant", "content": "I see."})
    return {f"turn {turn + 1} ms": 1e3 * seconds[turn] for turn in (0, 1, TURNS - 1)}


async def longest_gap(port: int, tokens: int, disturb: Callable[[], Any] | None = None) -> float:
    """Return the longest time between two tokens of eight streams, in milliseconds, while something happens."""
    body = body_of([{"role": "user", "content": "Tell me a story."}], stream=True) | {"max_tokens": tokens}
    streams = [asyncio.create_task(stream(port, PATH, body)) for _ in range(STREAMS)]
    disturbing = asyncio.create_task(disturb()) if disturb is not None else None
    arrivals = await asyncio.gather(*streams)
    if disturbing is not None:
        await disturbing
    started = max(times[0] for times in arrivals)
    return max(
        1e3 * (later - earlier)
        for times in arrivals
        for earlier, later in pairwise(times)
        if earlier >= started
    )


async def beside(port: int, rounds: int, tokens: int) -> Figures:
    alone, disturbed = [], []
    async with aiohttp.ClientSession() as session:
        before = await encoder_time(session, port)
        for number in range(rounds):

            async def send(number: int = number) -> None:
                for one in range(3):
                    await asyncio.sleep(1)
                    await post(session, port, body_of(asked(png(5000 + 10 * number + one, 512, 512))))

            alone.append(await longest_gap(port, tokens))
            disturbed.append(await longest_gap(port, tokens, send))
        after = await encoder_time(session, port)
    return {
        "longest gap ms": median(alone),
        "longest gap beside a picture ms": median(disturbed),
        "encoder ms": 1e3 * (after[0] - before[0]) / (after[1] - before[1]),
    }


async def bodies(port: int, rounds: int, tokens: int, ticks: np.ndarray) -> Figures:
    data = png(7000, 2048, 1800, noisy=True)  # 11 MiB
    large = body_of(
        asked(data, data[:-1] + b"!")
    )  # 31 MiB in base64; the second one is refused once it is read
    disturbed, gaps = [], []
    async with aiohttp.ClientSession() as session:
        for _ in range(rounds):

            async def send() -> None:
                await asyncio.sleep(0.5)
                ticks[:] = 0.0
                await asyncio.gather(*(post(session, port, large) for _ in range(10)))

            disturbed.append(await longest_gap(port, tokens, send))
            gaps.append(ticks.copy())
    of_ticks, without_waits = np.median(gaps, axis=0)
    return {
        "longest gap beside ten large bodies ms": median(disturbed),
        "longest gap of ticks beside them ms": float(of_ticks),
        "the same without waits for a CPU ms": float(without_waits),
    }


async def broken_files(one: Server) -> Figures:
    whole = png(8000, 1280, 800)
    before = one.process.memory_info().rss
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        found = await asyncio.gather(
            *(post(session, one.port, body_of(asked(whole[: 1000 + 10 * number]))) for number in range(100))
        )
    assert {status for status, _, _ in found} == {400}, found[0]
    return {
        "broken files, slowest ms": 1e3 * max(seconds for _, seconds, _ in found),
        "broken files, more MiB": (one.process.memory_info().rss - before) / (1 << 20),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure prompts with pictures.")
    parser.add_argument("--model", choices=sorted(SHAPES), default="smolvlm-256m")
    parser.add_argument("--folder", type=Path, default=Path("build/pictures"), help="of models (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=150, help="of each stream (%(default)s)")
    parser.add_argument("--beside", type=int, metavar="PORT", help="of another server to compare with")
    flags = parser.parse_args()
    folder = write_model(flags.model, flags.folder / flags.model)
    figures: Figures = {}
    ticks_file = flags.folder / "ticks"
    ticks_file.write_bytes(bytes(16))
    ticks = longest_gaps(ticks_file)
    module = ("benchmarks.pictures.ticking_server", str(ticks_file))
    with server(str(folder), None, *FLAGS, module=module) as one:

        async def run() -> None:
            if flags.beside is not None:
                figures.update(await against(one.port, flags.beside, flags.rounds))
            figures.update(await first_token(one.port, folder, flags.rounds, flags.folder))
            figures.update(await conversation(one.port))
            figures.update(await beside(one.port, flags.rounds, flags.tokens))
            figures.update(await bodies(one.port, flags.rounds, flags.tokens, ticks))
            figures.update(await broken_files(one))

        asyncio.run(run())
        children = [
            child.memory_info().rss for child in psutil.Process(one.process.pid).children(recursive=True)
        ]
        figures["MiB of all processes"] = (one.process.memory_info().rss + sum(children)) / (1 << 20)
    for name, value in figures.items():
        print(f"{name:45}{value:10.2f}")
    print(f"saved {save('pictures', {'model': flags.model, 'cpus': os.cpu_count(), 'figures': figures})}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
