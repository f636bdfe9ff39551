"""`fairlead up` with small real processes in place of engine and router."""

import contextlib
import json
import os
import queue
import shlex
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from api_server import free_port
from llm_local import command, machine

# Seconds to wait for a line.
PATIENCE = 60

# Replaces `fairlead`: fetch prints a folder; engine and router answer 200 to every request, and print their pid.
# An engine with --fail ends with 7, and one with --stubborn ignores SIGTERM; each has a child, as a real engine has.
PROGRAM = """
import http.server, json, os, signal, socketserver, subprocess, sys
name, *rest = sys.argv[1:]
if name == "fetch":
    print("looking", os.environ.get("MARK", "without a mark"), file=sys.stderr)
    print("/cache/" + rest[0].split("/")[-1])
    sys.exit(3 if "missing" in rest[0] else 0)
if "--fail" in rest:
    sys.exit(7)
if "--stubborn" in rest:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
values = dict(argument.partition("=")[::2] for argument in rest)
if name == "router":
    file = values["--endpoints-file"]
    print(json.dumps(json.load(open(file))), flush=True)
child = subprocess.Popen(["sleep", "1000"])
listed = b""
for argument in rest:
    if argument.startswith("--adapters-file="):
        wanted = json.load(open(argument.split("=")[1]))["adapters"]
        cards = [{"id": one["name"], "parent": "tiny"} for one in wanted if "missing" not in one["uri"]]
        listed = json.dumps({"data": [{"id": "tiny", "parent": None}, *cards]}).encode()
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = listed if self.path == "/v1/models" else open(file, "rb").read() if self.path == "/file" else b""
        self.send_response(200); self.send_header("content-length", str(len(body))); self.end_headers()
        self.wfile.write(body)
    def do_POST(self):
        if name == "router" and "--keys-file" in values:
            self.send_error(401)
        elif "--embeds" in rest and (self.path != "/v1/embeddings" or self.asked() != "default/tiny"):
            self.send_error(400)
        else:
            self.do_GET()
    def asked(self):
        return json.loads(self.rfile.read(int(self.headers["content-length"])))["model"]
    def log_message(self, *_): pass
if name == "router":
    server = http.server.ThreadingHTTPServer((values["--host"], int(values["--port"])), Answer)
else:
    if os.path.exists(values["--uds"]):  # of an engine that was killed
        os.unlink(values["--uds"])
    server = socketserver.ThreadingUnixStreamServer(values["--uds"], Answer)
environment = {name: os.environ.get(name) for name in ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "MARK")}
print(json.dumps({"pid": os.getpid(), "child": child.pid, "arguments": rest, **environment}), flush=True)
server.serve_forever()
"""

DRIVER = """
import sys
from llm_local import command
sys.exit(command.main(sys.argv[2:], lambda arguments: (sys.executable, sys.argv[1], *arguments)))
"""


class Up:
    """A running `fairlead up`, without a terminal."""

    def __init__(self, folder: Path, *documents: object, flags: Sequence[str] = ()) -> None:
        program = folder / "program.py"
        program.write_text(PROGRAM)
        file = folder / "file.yaml"
        file.write_text("\n---\n".join(json.dumps(document) for document in documents))
        self.process = subprocess.Popen(
            [sys.executable, "-c", DRIVER, str(program), str(file), f"--port={free_port()}", *flags],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": "4,5,6,7"},
        )
        self.seen: list[str] = []
        self.lines: queue.Queue[str | None] = queue.Queue()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line.rstrip("\n"))
        self.lines.put(None)

    def line(self, wanted: Callable[[str], bool]) -> str:
        """Return the next line for which `wanted` is true."""
        while (line := self.lines.get(timeout=PATIENCE)) is not None:
            self.seen.append(line)
            if wanted(line):
                return line
        raise AssertionError("ended before that:\n" + "\n".join(self.seen))

    def report(self, name: str) -> dict[str, object]:
        """Return the report that the process `name` prints at its start."""
        line = self.line(lambda line: line.startswith(f'{name} | {{"pid"'))
        report: dict[str, object] = json.loads(line.split(" | ", 1)[1])
        return report

    def rest(self) -> str:
        while (line := self.lines.get(timeout=PATIENCE)) is not None:
            self.seen.append(line)
        self.lines.put(None)
        return "\n".join(self.seen)

    def reports(self) -> dict[str, dict[str, object]]:
        """Return the reports among the lines seen so far."""
        pairs = [line.split(" | ", 1) for line in self.seen if ' | {"pid"' in line]
        return {name: json.loads(text) for name, text in pairs}

    def kill(self) -> None:
        """Kill it with all that it has started."""
        self.process.kill()
        self.process.wait()
        self.rest()
        # Children of the replacements are not on the leash.
        for report in self.reports().values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(str(report["child"])), signal.SIGKILL)


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Callable[..., Up]]:
    with contextlib.ExitStack() as started:

        def start(*documents: object, flags: Sequence[str] = ()) -> Up:
            running = Up(tmp_path, *documents, flags=flags)
            started.callback(running.kill)
            return running

        yield start


@pytest.fixture(scope="module")
def stack(manifest: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """Three deployments that are ready, for tests that leave them as they are."""
    adapters = [{"name": "french", "uri": "./french"}, {"name": "broken", "uri": "./missing"}]
    first = manifest(
        replicas=2,
        adapters=adapters,
        resources={"gpu": 1},
        rollout={"drainTimeoutSeconds": 5},
        engine={"env": [{"name": "MARK", "value": "seen"}]},
    )
    first["spec"]["model"]["secretRef"] = {"name": "hub"}
    second = manifest(
        "other",
        adapters=[],
        resources={"gpu": 2},
        routing={"policy": "round_robin"},
        rollout={"drainTimeoutSeconds": 300},
    )
    second["spec"]["model"]["servedNames"] = ["a", "b"]
    running = Up(tmp_path_factory.mktemp("stack"), first, second, manifest("cpu"))
    try:
        ready(running)
        yield running
    finally:
        running.kill()


def ready(running: Up) -> str:
    """Wait until every engine is ready; return the last line of the greeting: the router's address."""
    running.line(lambda line: line.startswith("stop with Ctrl-C"))
    address = running.line(lambda line: True)
    running.line(lambda line: " engines are ready after " in line)
    return address


def gone(reports: dict[str, dict[str, object]]) -> bool:
    pids = [int(str(report[key])) for report in reports.values() for key in ("pid", "child")]
    left = []
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            left.append(psutil.Process(pid))
    _, alive = psutil.wait_procs(left, timeout=PATIENCE)
    return not [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]


def test_starts_replicas_and_router_and_ends_them_all_on_a_signal(
    up: Callable[..., Up], manifest: Any
) -> None:
    environment = [{"name": "MARK", "value": "seen"}]
    running = up(manifest(replicas=2, engine={"env": environment}), flags=["--port=0"])
    address = ready(running)
    assert address.startswith("http://127.0.0.1:")
    assert sum(address in line for line in running.seen) == 3  # two curl lines and the last one
    reports = running.reports()
    assert set(reports) == {"tiny-0", "tiny-1", "router"}
    assert all(reports[name]["MARK"] == "seen" for name in ("tiny-0", "tiny-1"))
    assert all(reports[name]["arguments"][0] == "/cache/tiny" for name in ("tiny-0", "tiny-1"))  # type: ignore[index]
    assert reports["tiny-0"]["OMP_NUM_THREADS"] == str(max(1, machine.cores() // 2))
    running.process.send_signal(signal.SIGINT)
    assert "stopped" in running.rest()
    assert running.process.wait(PATIENCE) == 0
    assert gone(reports)
    assert not any(path.parent.exists() for path in sockets(running))


def test_the_endpoints_file_has_every_deployment(stack: Up) -> None:
    printed = next(line for line in stack.seen if line.startswith('router | {"deployments"'))
    first, other, cpu = json.loads(printed.split(" | ", 1)[1])["deployments"]
    assert (first["namespace"], first["name"], first["servedNames"], first["policy"]) == (
        "default",
        "tiny",
        ["tiny"],
        None,
    )
    assert (other["servedNames"], other["policy"]) == (["a", "b"], "round_robin")
    assert first["created"] < other["created"] < cpu["created"]
    listed = [
        Path(address.removeprefix("unix:")) for each in (first, other, cpu) for address in each["endpoints"]
    ]
    assert sorted(listed) == sorted(sockets(stack))


def sockets(running: Up) -> list[Path]:
    """Return the sockets of the engines that reported themselves."""
    arguments = [report["arguments"] for name, report in running.reports().items() if name != "router"]
    return [
        Path(word.removeprefix("--uds="))
        for words in arguments
        for word in words  # type: ignore[attr-defined]
        if word.startswith("--uds=")
    ]


def test_engines_listen_where_no_other_user_can_reach_them(stack: Up) -> None:
    listening = sockets(stack)
    assert len(listening) == 4 and all(path.is_socket() for path in listening)
    assert {stat.S_IMODE(path.parent.stat().st_mode) for path in listening} == {0o700}

    pids = [report["pid"] for name, report in stack.reports().items() if name != "router"]
    assert [psutil.Process(pid).net_connections("inet") for pid in pids] == [[]] * 4  # type: ignore[arg-type]


def test_the_endpoints_file_has_the_engines_that_serve_each_adapter(stack: Up) -> None:
    address = next(line for line in stack.seen if line.startswith("http://"))
    with urllib.request.urlopen(f"{address}/file", timeout=PATIENCE) as answer:
        first, other, _ = json.load(answer)["deployments"]

    french, broken = first["adapters"]
    assert (french["name"], sorted(french["endpoints"])) == ("french", sorted(first["endpoints"]))
    assert "error" not in french
    assert broken == {"name": "broken", "error": "tiny-0, tiny-1 could not load it, and logged why"}
    assert other["adapters"] == []


def test_assigns_each_gpu_once_and_none_to_a_cpu_pod(stack: Up) -> None:
    reports = stack.reports()
    assert [reports[name]["CUDA_VISIBLE_DEVICES"] for name in ("tiny-0", "tiny-1", "other-0", "cpu-0")] == [
        "4",
        "5",
        "6,7",
        "",
    ]


def test_the_fetch_gets_the_environment_of_the_spec(stack: Up) -> None:
    assert "fetch | looking seen" in stack.seen


def test_the_router_drains_as_long_as_the_slowest_engine(stack: Up) -> None:
    assert "--drain-timeout=300" in stack.reports()["router"]["arguments"]  # type: ignore[operator]


def test_settings_without_an_effect_are_named(stack: Up) -> None:
    named = [line for line in stack.seen if " has no effect here: " in line]
    assert len(named) == 1
    assert "file.yaml, document 1: spec.model.secretRef has no effect here: the token" in named[0]


@pytest.mark.more
def test_the_printed_request_fits_the_model(up: Callable[..., Up], manifest: Any) -> None:
    running = up(manifest(engine={"args": ["--embeds"]}))
    address = ready(running)

    [curl] = [shlex.split(line) for line in running.seen if line.strip().startswith("curl ")]

    assert curl[:3] == ["curl", "-s", f"{address}/v1/embeddings"]
    assert json.loads(curl[-1]) == {"model": "tiny", "input": "Paris is the capital of France."}


def test_with_keys_it_is_ready_when_engines_are_and_the_request_has_a_key(
    up: Callable[..., Up], manifest: Any, tmp_path: Path
) -> None:
    keys = tmp_path / "keys"
    keys.write_text("keys: []")

    running = up(manifest(), flags=[f"--keys-file={keys}"])
    ready(running)

    assert f"--keys-file={keys}" in running.reports()["router"]["arguments"]  # type: ignore[operator]
    said = running.seen
    assert said.index(next(line for line in said if line.startswith("tiny-0 is ready"))) < said.index(
        next(line for line in said if line.startswith("ready after"))
    )
    assert f"set KEY to a key of {keys}" in said
    curls = [line for line in said if line.strip().startswith("curl ")]
    assert len(curls) == 2 and all('-H "Authorization: Bearer $KEY"' in line for line in curls)


@pytest.mark.more
def test_a_router_on_all_addresses_is_asked_on_the_loopback_one(up: Callable[..., Up], manifest: Any) -> None:
    running = up(manifest(), flags=["--host=0.0.0.0"])

    address = ready(running)

    assert address.startswith("http://127.0.0.1:")
    assert "--host=0.0.0.0" in running.reports()["router"]["arguments"]  # type: ignore[operator]
    said = [line for line in running.seen if line.startswith("every machine that reaches 0.0.0.0")]
    assert len(said) == 1


def test_restarts_a_killed_engine_on_its_socket(up: Callable[..., Up], manifest: Any) -> None:
    running = up(manifest(replicas=1))
    ready(running)
    first = running.reports()["tiny-0"]
    os.kill(int(str(first["pid"])), signal.SIGKILL)
    running.line(lambda line: line == "tiny-0 ended with signal SIGKILL; restarting it in 1 s")
    again = running.report("tiny-0")
    assert again["arguments"] == first["arguments"]
    assert again["pid"] != first["pid"]
    running.line(lambda line: line.startswith("tiny-0 is ready after"))
    assert gone({"tiny-0": first})  # its own child too


@pytest.mark.more
def test_ends_everything_when_an_engine_never_becomes_ready(up: Callable[..., Up], manifest: Any) -> None:
    running = up(manifest(engine={"args": ["--fail"]}))
    said = running.rest()
    assert "tiny-0 ended with exit code 7; restarting it in 1 s" in said
    assert "tiny-0 ended with exit code 7; restarting it in 2 s" in said
    assert "fairlead up: tiny-0 ended with exit code 7, 3 times, and was never ready" in said
    assert running.process.wait(PATIENCE) == 1
    assert gone(running.reports())


def test_leaves_no_process_when_it_is_killed(up: Callable[..., Up], manifest: Any) -> None:
    running = up(manifest(replicas=2))
    ready(running)
    reports = running.reports()
    replicas = [psutil.Process(int(str(report["pid"]))) for report in reports.values()]
    running.process.kill()
    _, alive = psutil.wait_procs(replicas, timeout=PATIENCE)
    assert not alive


@pytest.mark.more
def test_a_second_signal_skips_the_grace_period(up: Callable[..., Up], manifest: Any) -> None:
    running = up(manifest(engine={"args": ["--stubborn"]}))
    ready(running)
    reports = running.reports()
    running.process.send_signal(signal.SIGTERM)
    running.line(lambda line: line.startswith("stopping"))
    running.process.send_signal(signal.SIGTERM)
    assert running.process.wait(PATIENCE) == 0
    assert gone(reports)


def run_here(folder: Path, *documents: object) -> int:
    """Run `fairlead up` in this process, with small processes in place of what it starts; return its exit status."""
    program, file = folder / "program.py", folder / "file.yaml"
    program.write_text(PROGRAM)
    file.write_text("\n---\n".join(json.dumps(document) for document in documents))
    return command.main([str(file), "--port=0"], lambda arguments: (sys.executable, str(program), *arguments))


def test_refuses_more_gpus_in_total_than_there_are(
    manifest: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")

    status = run_here(
        tmp_path, manifest(replicas=3, resources={"gpu": 1}), manifest("other", resources={"gpu": 2})
    )

    said = "".join(capfd.readouterr())
    assert (
        "fairlead up: 5 GPUs are asked for and there are 4 here: tiny asks for 3 x 1, other asks for 1 x 2"
        in said
    )
    assert status == 1
    assert '{"pid"' not in said and "fetching" not in said


def test_ends_before_anything_runs_when_a_model_cannot_be_fetched(
    manifest: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    status = run_here(tmp_path, manifest("missing"))

    said = "".join(capfd.readouterr())
    assert "fetch | looking without a mark" in said
    assert "fairlead up: pypi://missing cannot be fetched" in said
    assert status == 1
    assert '{"pid"' not in said


def test_reports_a_port_in_use_before_anything_starts(
    manifest: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file.yaml"
    file.write_text(json.dumps(manifest()))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert command.main([str(file), f"--port={port}"]) == 1
    assert f"fairlead up: can't listen on 127.0.0.1:{port}: " in capfd.readouterr().err


@pytest.mark.parametrize("flags", [["--port=70000"], ["--host=192.0.2.1", "--port=0"]])
def test_reports_an_address_that_this_machine_lacks(
    flags: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["org/name", *flags]) == 1
    captured = capfd.readouterr()
    assert "can't listen on " in captured.err and "--port or --host" in captured.err
    assert captured.out == ""


def test_a_folder_whose_path_is_too_long_for_sockets_is_refused(
    manifest: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    file = tmp_path / "file.yaml"
    document = manifest()
    document["spec"]["model"]["uri"] = str(tmp_path)
    file.write_text(json.dumps(document))

    assert command.main([str(file), "--port=0"]) == 1

    said = capfd.readouterr().err
    assert "fairlead up: the path of a Unix socket has at most" in said
    assert "choose another folder for temporary files with TMPDIR" in said
