"""`fairlead up` with the real engine, router and model."""

import contextlib
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import psutil
import pytest
import yaml
from waiting import until

pytestmark = pytest.mark.e2e

SAMPLE = Path(__file__).parents[2] / "manifests/samples/smollm2.yaml"
PATIENCE = 180  # seconds; ample for a first conversion of the model on a busy machine
CORE = "engine_server.core"


class Up:
    """A running `fairlead up` that writes its output to a file."""

    def __init__(self, folder: Path, replicas: int) -> None:
        manifest = yaml.safe_load(SAMPLE.read_text())
        manifest["spec"]["replicas"] = replicas
        manifest["spec"]["model"]["servedNames"] = ["smollm2", "alias"]
        (folder / "smollm2.yaml").write_text(yaml.safe_dump(manifest))
        self.log = folder / "log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "engine_server.cli", "up", str(folder / "smollm2.yaml"), "--port=0"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def until(self, condition: Callable[[list[str]], object]) -> list[str]:
        """Wait until the output fulfils the condition, and return its lines."""

        def seen() -> list[str] | None:
            lines = self.log.read_text().splitlines()
            if self.process.poll() is not None:
                pytest.fail("it ended:\n" + "\n".join(lines))
            return lines if condition(lines) else None

        return until(seen, f"a line in {self.log}", PATIENCE)

    def address(self) -> str:
        """Wait until every engine is ready and return the router's address, the last line of the greeting."""
        lines = self.until(lambda lines: any(" engines are ready after " in line for line in lines))
        return next(line for line in lines if line.startswith("http://"))

    def family(self) -> list[psutil.Process]:
        family: list[psutil.Process] = psutil.Process(self.process.pid).children(recursive=True)
        return family


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Callable[[int], Up]]:
    started: list[Up] = []

    def start(replicas: int) -> Up:
        started.append(Up(tmp_path, replicas))
        return started[-1]

    yield start
    for each in started:
        each.process.kill()
        each.process.wait()


def cores(family: list[psutil.Process]) -> list[psutil.Process]:
    found = []
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            found += [process] if CORE in process.cmdline() else []
    return found


def listening(process: psutil.Process) -> list[Any]:
    """Return the TCP sockets on which a process listens."""
    return [each for each in process.net_connections("tcp") if each.status == psutil.CONN_LISTEN]


def has_ended(process: psutil.Process) -> bool:
    """Return True also for a process whose parent has not collected its exit code, which nobody may ever do."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def wait_for_end(family: list[psutil.Process]) -> None:
    until(lambda: all(map(has_ended, family)), "the end of all its processes", PATIENCE)


def test_replicas_answer_restart_after_a_kill_and_end_with_the_command(up: Callable[[int], Up]) -> None:
    running = up(2)
    address = running.address()
    lines = running.log.read_text().splitlines()
    for phase in ("import", "load", "warm up", "ready"):
        assert sum(f" | phase {phase} " in line for line in lines) == 2
    client = openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)
    question = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]
    stream = client.chat.completions.create(
        model="smollm2", messages=question, stream=True, temperature=0, max_tokens=16
    )
    assert "Paris" in "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)

    for name in ("alias", "default/smollm2", "default/alias"):
        answer = client.completions.create(model=name, prompt="Hello", max_tokens=1)
        assert (answer.model, answer.choices[0].finish_reason) == (name, "length")

    assert len(cores(running.family())) == 2
    ports = {each.laddr.port for process in running.family() for each in listening(process)}
    assert len(ports) == 2  # the router's, and that of its metrics
    cores(running.family())[0].kill()
    running.until(lambda lines: any("ended with exit code" in line for line in lines))

    def ask(_: int) -> str:
        answer = client.completions.create(model="smollm2", prompt="Hello", max_tokens=1)
        return str(answer.choices[0].finish_reason)

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(ask, range(40))) == {"length"}
    running.until(lambda lines: sum("is ready after" in line for line in lines) == 4)

    family = running.family()
    assert len(cores(family)) == 2
    running.process.kill()
    wait_for_end(family)


def test_signal_ends_engines_that_are_still_loading(up: Callable[[int], Up]) -> None:
    running = up(1)
    until(lambda: cores(running.family()), "an engine's core", PATIENCE)
    family = running.family()
    running.process.send_signal(signal.SIGINT)
    assert running.process.wait(PATIENCE) == 0
    wait_for_end(family)
