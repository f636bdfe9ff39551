"""`fairlead up` with small real processes in place of engine and router."""

import contextlib
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from llm_local import local, manifests, replica
from llm_operator.api.spec import parse
from llm_operator.observed import Observed
from llm_operator.plan.plan import plan
from llm_operator.settings import Settings

PATIENCE = 60  # seconds that a test waits for a line; ample

# Stands in for `fairlead`: fetch prints a folder; engine and router answer 200 to all, and print their pid.
# An engine told to fail ends with 7; a stubborn one ignores SIGTERM; each has a child, as a real engine has.
PROGRAM = """
import http.server, json, os, signal, subprocess, sys
name, *rest = sys.argv[1:]
if name == "fetch":
    print("looking", file=sys.stderr)
    print("/cache/" + rest[0].split("/")[-1])
    sys.exit(3 if "missing" in rest[0] else 0)
if "--fail" in rest:
    sys.exit(7)
if "--stubborn" in rest:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
port = next(int(a.split("=")[1]) for a in rest if a.startswith("--port="))
if name == "router":
    file = next(a.split("=")[1] for a in rest if a.startswith("--endpoints-file="))
    print(json.dumps(json.load(open(file))))
child = subprocess.Popen(["sleep", "1000"])
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.send_header("content-length", "0"); self.end_headers()
    do_POST = do_GET
    def log_message(self, *_): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Answer)
environment = {name: os.environ.get(name) for name in ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "MARK")}
print(json.dumps({"pid": os.getpid(), "child": child.pid, "arguments": rest, **environment}), flush=True)
server.serve_forever()
"""

DRIVER = """
import sys
from llm_local import local
sys.exit(local.main(sys.argv[2:], lambda arguments: (sys.executable, sys.argv[1], *arguments)))
"""


def manifest(name: str = "tiny", **spec: object) -> dict[str, object]:
    model = {"uri": f"pypi://{name}"}
    return {
        "apiVersion": "fairlead.dev/v1alpha1",
        "kind": "LLMDeployment",
        "metadata": {"name": name},
        "spec": {"model": model, **spec},
    }


class Up:
    """A running `fairlead up`, without a terminal."""

    def __init__(self, folder: Path, *documents: object) -> None:
        program = folder / "program.py"
        program.write_text(PROGRAM)
        file = folder / "file.yaml"
        file.write_text("\n---\n".join(json.dumps(document) for document in documents))
        self.process = subprocess.Popen(
            [sys.executable, "-c", DRIVER, str(program), str(file), "--port=0"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": "4,5,6"},
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
        """The next line that is wanted."""
        while (line := self.lines.get(timeout=PATIENCE)) is not None:
            self.seen.append(line)
            if wanted(line):
                return line
        raise AssertionError("ended before that:\n" + "\n".join(self.seen))

    def report(self, name: str) -> dict[str, object]:
        """What the process `name` says of itself when it starts."""
        line = self.line(lambda line: line.startswith(f'{name} | {{"pid"'))
        report: dict[str, object] = json.loads(line.split(" | ", 1)[1])
        return report

    def rest(self) -> str:
        while (line := self.lines.get(timeout=PATIENCE)) is not None:
            self.seen.append(line)
        self.lines.put(None)  # for whoever asks again
        return "\n".join(self.seen)

    def reports(self) -> dict[str, dict[str, object]]:
        """All reports among the lines seen so far."""
        pairs = [line.split(" | ", 1) for line in self.seen if ' | {"pid"' in line]
        return {name: json.loads(text) for name, text in pairs}


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Callable[..., Up]]:
    started: list[Up] = []

    def start(*documents: object) -> Up:
        started.append(Up(tmp_path, *documents))
        return started[-1]

    yield start
    for each in started:
        each.process.kill()
        each.process.wait()
        each.rest()
        for report in each.reports().values():  # no leash holds the stand-ins' own children
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(str(report["child"])), signal.SIGKILL)


def ready(running: Up) -> str:
    """Waits for the end of the greeting: the router's address."""
    running.line(lambda line: line.startswith("stop with Ctrl-C"))
    return running.line(lambda line: True)


def gone(reports: dict[str, dict[str, object]]) -> bool:
    pids = [int(str(report[key])) for report in reports.values() for key in ("pid", "child")]
    left = [process for pid in pids if psutil.pid_exists(pid) for process in [psutil.Process(pid)]]
    _, alive = psutil.wait_procs(left, timeout=PATIENCE)
    return not [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]


def test_two_replicas_and_the_router_come_up_and_a_signal_ends_them_all(up: Callable[..., Up]) -> None:
    running = up(manifest(replicas=2, engine={"env": [{"name": "MARK", "value": "seen"}]}))
    address = ready(running)
    assert address.startswith("http://127.0.0.1:")
    assert sum(address in line for line in running.seen) == 3  # two curl lines and the last one
    reports = running.reports()
    assert set(reports) == {"tiny-0", "tiny-1", "router"}
    assert all(reports[name]["MARK"] == "seen" for name in ("tiny-0", "tiny-1"))
    assert all(reports[name]["arguments"][0] == "/cache/tiny" for name in ("tiny-0", "tiny-1"))  # type: ignore[index]
    assert reports["tiny-0"]["OMP_NUM_THREADS"] == str(max(1, local.cores() // 2))
    running.process.send_signal(signal.SIGINT)
    assert "stopped" in running.rest()
    assert running.process.wait(PATIENCE) == 0
    assert gone(reports)


def test_the_router_is_told_of_every_deployment(up: Callable[..., Up]) -> None:
    second = manifest("other", routing={"policy": "round_robin"}, replicas=1)
    second["spec"]["model"]["servedNames"] = ["a", "b"]  # type: ignore[index]
    running = up(manifest(replicas=2), second)
    ready(running)
    told = next(line for line in running.seen if line.startswith('router | {"deployments"'))
    first, other = json.loads(told.split(" | ", 1)[1])["deployments"]
    assert (first["namespace"], first["name"], first["servedNames"], first["policy"]) == (
        "default",
        "tiny",
        ["tiny"],
        None,
    )
    assert (other["servedNames"], other["policy"]) == (["a", "b"], "round_robin")
    assert first["created"] < other["created"]
    ports = [endpoint.rsplit(":", 1)[1] for endpoint in [*first["endpoints"], *other["endpoints"]]]
    arguments = [report["arguments"] for name, report in running.reports().items() if name != "router"]
    listening = [word for words in arguments for word in words if word.startswith("--port=")]  # type: ignore[attr-defined]
    assert sorted(f"--port={port}" for port in ports) == sorted(listening)


def test_an_engine_that_is_killed_is_started_again_on_its_port(up: Callable[..., Up]) -> None:
    running = up(manifest(replicas=1))
    ready(running)
    first = running.reports()["tiny-0"]
    os.kill(int(str(first["pid"])), signal.SIGKILL)
    running.line(lambda line: line == "tiny-0 ended with signal SIGKILL; starting it again in 1 s")
    again = running.report("tiny-0")
    assert again["arguments"] == first["arguments"]
    assert again["pid"] != first["pid"]
    running.line(lambda line: line.startswith("tiny-0 is ready after"))
    assert gone({"tiny-0": first})  # its own child too


def test_an_engine_that_never_comes_up_ends_everything(up: Callable[..., Up]) -> None:
    running = up(manifest(engine={"args": ["--fail"]}))
    said = running.rest()
    assert "tiny-0 ended with exit code 7; starting it again in 1 s" in said
    assert "tiny-0 ended with exit code 7; starting it again in 2 s" in said
    assert "fairlead up: tiny-0 ended with exit code 7, 3 times, and was never ready" in said
    assert running.process.wait(PATIENCE) == 1
    assert gone(running.reports())


def test_nothing_is_left_when_it_is_killed_itself(up: Callable[..., Up]) -> None:
    running = up(manifest(replicas=2))
    ready(running)
    reports = running.reports()
    replicas = [psutil.Process(int(str(report["pid"]))) for report in reports.values()]
    running.process.kill()
    _, alive = psutil.wait_procs(replicas, timeout=PATIENCE)
    assert not alive


def test_a_second_signal_does_not_wait_for_the_grace(up: Callable[..., Up]) -> None:
    running = up(manifest(engine={"args": ["--stubborn"]}))
    ready(running)
    reports = running.reports()
    running.process.send_signal(signal.SIGTERM)
    running.line(lambda line: line.startswith("stopping"))
    running.process.send_signal(signal.SIGTERM)
    assert running.process.wait(PATIENCE) == 0
    assert gone(reports)


def test_gpus_go_round_and_a_cpu_pod_sees_none(up: Callable[..., Up]) -> None:
    running = up(manifest(replicas=2, resources={"gpu": 2}), manifest("cpu"))
    ready(running)
    reports = running.reports()
    assert [reports[name]["CUDA_VISIBLE_DEVICES"] for name in ("tiny-0", "tiny-1", "cpu-0")] == [
        "4,5",
        "6,4",
        "",
    ]


def test_a_model_that_cannot_be_fetched_ends_it_before_anything_runs(up: Callable[..., Up]) -> None:
    running = up(manifest("missing"))
    said = running.rest()
    assert "fetch | looking" in said
    assert "fairlead up: pypi://missing cannot be fetched" in said
    assert running.process.wait(PATIENCE) == 1
    assert running.reports() == {}


def test_arguments_are_the_planned_containers_but_for_port_host_and_model() -> None:
    document = manifest(
        replicas=3,
        engine={
            "maxModelLen": 512,
            "args": ["--max-num-seqs=8", "--seed=3"],
            "env": [{"name": "A", "value": "b"}],
        },
        resources={"gpu": 2, "cpu": "3", "memory": "4Gi"},
        rollout={"drainTimeoutSeconds": 5},
    )
    deployment = parse(document)
    template = plan(deployment, Observed(), Settings(engine_image="x")).child("Deployment")["spec"][
        "template"
    ]
    container = template["spec"]["containers"][0]
    pod = replica.pod(deployment)
    ours = replica.arguments(pod, 1234, "/here", ["0", "1"])
    different = [
        (planned, here) for planned, here in zip(container["args"], ours, strict=True) if planned != here
    ]
    assert different == [
        ("/models/model", "/here"),
        ("--host=0.0.0.0", "--host=127.0.0.1"),
        ("--port=8000", "--port=1234"),
    ]
    assert replica.environment(pod, 2, ["0"]) == {
        "A": "b",
        "OMP_NUM_THREADS": "2",
        "CUDA_VISIBLE_DEVICES": "0",
    }
    assert pod.grace == template["spec"]["terminationGracePeriodSeconds"]
    assert pod.fetch == "pypi://tiny"


def test_where_there_is_no_gpu_nothing_is_sharded_over_gpus() -> None:
    pod = replica.pod(parse(manifest(resources={"gpu": 2})))
    without = set(pod.arguments) - {
        "--tensor-parallel-size=2",
        "--host=0.0.0.0",
        "--port=8000",
        "/models/model",
    }
    ours = set(replica.arguments(pod, 1, "/here", []))
    assert ours == without | {"--host=127.0.0.1", "--port=1", "/here"}


def test_a_folder_is_served_where_it_lies(tmp_path: Path) -> None:
    document = manifest()
    document["spec"]["model"]["uri"] = str(tmp_path)  # type: ignore[index]
    pod = replica.pod(parse(document))
    assert pod.fetch is None
    assert replica.arguments(pod, 1, None, [])[1] == str(tmp_path)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("a: [", "file.yaml: is not YAML"),
        ("", "file.yaml: there is no LLMDeployment"),
        (json.dumps({"apiVersion": "v1", "kind": "Secret"}), "file.yaml: there is no LLMDeployment"),
        ("just words", "file.yaml, document 1: "),
        (json.dumps(manifest(replicas=-1)), "file.yaml, document 1: spec.replicas"),
        (json.dumps(manifest(wrong=1)), "file.yaml, document 1: spec.wrong"),
        ("---\n".join([json.dumps(manifest()) + "\n"] * 2), "file.yaml, document 2: metadata.name"),
        (json.dumps(manifest(model={"uri": "pvc://claim/path"})), "pvc://claim/path is a volume claim"),
        (
            json.dumps(manifest(engine={"env": [{"name": "K", "valueFrom": {}}]})),
            "spec.engine.env: K has a valueFrom",
        ),
    ],
)
def test_a_wrong_file_is_named_with_document_and_field(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], text: str, complaint: str
) -> None:
    good, bad = tmp_path / "good.yaml", tmp_path / "file.yaml"
    good.write_text(json.dumps(manifest("good")))
    bad.write_text(text)
    assert local.main([str(good), str(bad), "--port=0"]) == 1
    captured = capfd.readouterr()
    assert complaint in captured.err
    assert captured.out == ""


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(manifests.ManifestError, match=r"none\.yaml: cannot be read: No such file"):
        manifests.read([tmp_path / "none.yaml"])


def test_a_port_in_use_is_said_before_anything_starts(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file.yaml"
    file.write_text(json.dumps(manifest()))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert local.main([str(file), f"--port={port}"]) == 1
    assert f"port {port} cannot be used" in capfd.readouterr().err
