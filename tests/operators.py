"""Operators of the tests: in a thread of this process, or in a process of their own."""

import asyncio
import logging
import os
import signal
import subprocess
import sys
import threading
import urllib.request
from contextlib import suppress
from pathlib import Path

import pytest
from api_server import free_port
from llm_operator import metrics
from llm_operator.command import run
from llm_operator.control.cluster import load_configuration
from llm_operator.flags import parse
from prometheus_client.parser import text_string_to_metric_families
from waiting import until

# As `fairlead operator` logs.
logging.getLogger("llm_operator").setLevel(logging.INFO)
LOG_FORMAT = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
STOP_SECONDS = 60


class Running:
    """The ports and the metrics of an operator that runs."""

    def __init__(self, *flags: str) -> None:
        self.metrics_port = free_port()
        self.flags = [
            f"--health-port={free_port()}",
            f"--metrics-port={self.metrics_port}",
            "--engine-image=engine:1",
            *flags,
        ]

    def page(self, path: str) -> str:
        """Return a page of the internal port; only an operator that has logged something serves it."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}{path}", timeout=30) as page:
            return str(page.read().decode())

    def metrics(self) -> str:
        return self.page("/metrics")

    def metric(self, name: str, /, **labels: str) -> float:
        """Return the sum of the samples of this name that have these labels. Operators of one process share them."""
        return sum(
            sample.value
            for family in text_string_to_metric_families(self.metrics())
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )


def reconciles() -> float:
    """Return the successful reconciles of this process's operators so far."""
    return (
        metrics.REGISTRY.get_sample_value("fairlead_operator_reconciles_total", {"outcome": "success"}) or 0.0
    )


def settle(quiet: int = 15) -> None:
    """Wait until this process's operators have reconciled nothing for `quiet` looks in a row."""
    seen: list[float] = []

    def is_still() -> bool:
        seen.append(reconciles())
        return len(seen) > quiet and len(set(seen[-quiet:])) == 1

    until(is_still)


class Operator(Running):
    """An operator in a thread of its own, with the rights of a kubeconfig."""

    def __init__(self, kubeconfig: Path, *flags: str) -> None:
        super().__init__(*flags)
        self.kubeconfig = kubeconfig
        self.exit_status: int | None = None
        self._lines: list[str] = []
        self._loop = asyncio.new_event_loop()
        self._told_to_stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="operator", daemon=True)
        self._thread.start()

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    @property
    def log(self) -> str:
        return "\n".join(self._lines)

    def logged(self, words: str, times: int = 1) -> bool:
        """Return True once words were logged so often."""
        if not self.is_running:
            pytest.fail(f"the operator ended:\n{self.log}")
        return self.log.count(words) >= times

    def wait(self) -> int:
        """Wait until it ends; return its exit status."""
        self._thread.join(STOP_SECONDS)
        assert self.exit_status is not None, self.log
        return self.exit_status

    def stop(self) -> int:
        """Stop it as a signal does; return its exit status."""
        with suppress(RuntimeError):  # its loop is closed
            self._loop.call_soon_threadsafe(self._told_to_stop.set)
        return self.wait()

    def _run(self) -> None:
        records = Records(self._lines, threading.get_ident())
        logging.getLogger().addHandler(records)
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                self.exit_status = runner.run(self._work())
        except Exception:
            logging.getLogger(__name__).exception("the operator failed")
        finally:
            logging.getLogger().removeHandler(records)

    async def _work(self) -> int:
        configuration = await load_configuration(str(self.kubeconfig))
        return await run(parse(self.flags), configuration, self._told_to_stop)


class Records(logging.Handler):
    """Adds a line for each record of one thread."""

    def __init__(self, lines: list[str], thread: int) -> None:
        super().__init__()
        self.setFormatter(LOG_FORMAT)
        self.addFilter(lambda record: record.thread == thread)
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(self.format(record))


class OperatorProcess(Running):
    """An operator in a process of its own."""

    def __init__(self, kubeconfig: Path, log_file: Path, *flags: str) -> None:
        super().__init__(*flags)
        self._log_file = log_file
        with log_file.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "engine_server.cli", "operator", *self.flags],
                env={**os.environ, "KUBECONFIG": str(kubeconfig)},
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    @property
    def log(self) -> str:
        return self._log_file.read_text()

    def logged(self, words: str) -> bool:
        if self._process.poll() is not None:
            pytest.fail(f"the operator ended:\n{self.log}")
        return words in self.log

    def stop(self) -> int:
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(STOP_SECONDS)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
