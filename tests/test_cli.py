"""The command line as a whole: `fairlead` and what all its commands have in common."""

import argparse
import contextlib
import io
import json
import logging
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from engine_server import cli
from engine_server.contract.base.command_line import help_of
from engine_server.contract.base.logs import FORMAT_VARIABLE, LEVEL_VARIABLE, LEVELS
from engine_server.contract.base.version import VERSION
from engine_server.contract.cluster.fetch_container import UNUSABLE
from engine_server.model_sources import package

ENDPOINT = ["router", "--endpoint=m=http://127.0.0.1:1", "--host=127.0.0.1"]
OPERATOR = ["operator", "--engine-image=x"]
TAKEN = "TAKEN"
NOT_YAML = "NOT_YAML"
# A kubeconfig whose cluster has no address.
SERVERLESS = (
    "{current-context: a, contexts: [{name: a, context: {cluster: a}}], clusters: [{name: a, cluster: {}}]}"
)


def run(words: list[str], **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a process."""
    environment = {name: value for name, value in os.environ.items() if name != "KUBECONFIG"} | variables
    command = [sys.executable, "-m", "engine_server.cli", *words]
    return subprocess.run(
        command, capture_output=True, text=True, env=environment, stdin=subprocess.DEVNULL, timeout=120
    )


Call = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def call(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> Iterator[Call]:
    """Return a function that runs a command as `run` does, but in this process; what the command raises, it raises."""
    root = logging.getLogger()
    loggers = [root, *map(logging.getLogger, ("engine_server", "kopf"))]
    levels = [logger.level for logger in loggers]
    # Logs are the commands' own, which they leave to a program that has some.
    own, root.handlers = root.handlers, []
    monkeypatch.setattr(package, "find_spec", lambda name: None)  # no pip: it takes a second to find nothing

    def called(words: list[str], **variables: str) -> subprocess.CompletedProcess[str]:
        with pytest.MonkeyPatch.context() as patch:
            for name in ("KUBECONFIG", LEVEL_VARIABLE, FORMAT_VARIABLE):
                patch.delenv(name, raising=False)
            for name, value in {"HOME": str(tmp_path), **variables}.items():
                patch.setenv(name, value)
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
            root.handlers.clear()
            try:
                code = cli.main(words)
            except SystemExit as ended:
                code = int(ended.code or 0)
        return subprocess.CompletedProcess(words, code, *capfd.readouterr())

    yield called
    root.handlers = own
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


@pytest.mark.parametrize("words", [["-V"], ["--version"], ["version"]])
def test_version_is_that_of_the_distribution(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words) == 0
    assert capsys.readouterr().out == f"fairlead {VERSION}\n"


def test_help_lists_the_commands_and_the_flags_of_one(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["help"], ["--help"], ["-h"]):
        assert cli.main(words) == 0
        printed = capsys.readouterr().out
        assert all(f"\n  {name} " in printed for name in cli.COMMANDS)
    with pytest.raises(SystemExit) as ended:
        cli.main(["help", "up"])
    assert ended.value.code == 0
    assert "--replicas" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["nothing"], ["help", "nothing"]])
def test_an_unknown_command_is_refused_with_the_known_ones(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(words) == 2
    assert "there is no command 'nothing'; there are engine, router" in capsys.readouterr().err


def parsers_of(words: tuple[str, ...]) -> list[argparse.ArgumentParser]:
    """Return the parser whose help `fairlead WORDS --help` shows."""
    shown: list[argparse.ArgumentParser] = []
    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(SystemExit):
        patch.setattr(argparse.ArgumentParser, "print_help", lambda parser, file=None: shown.append(parser))
        cli.main([*words, "--help"])
    return shown


@pytest.mark.parametrize("words", [(name,) for name in cli.COMMANDS] + [("router", "key")])
def test_every_flag_has_help_and_at_its_end_its_default(words: tuple[str, ...]) -> None:
    [parser] = parsers_of(words)
    listed = [action for action in parser._actions if action.help != argparse.SUPPRESS]
    for action in listed:
        text = help_of(action) % {**vars(action), "prog": parser.prog}
        assert text, action.option_strings
        is_switch = action.nargs == 0 and not isinstance(action, argparse.BooleanOptionalAction)
        has_default = bool(action.option_strings) and not action.required and not is_switch
        assert text.count("default: ") == has_default, text
        assert text.endswith(")") or not has_default, text
    shown = "".join(parser.format_help().split())
    assert all("".join(help_of(action).split()) in shown for action in listed if "%" not in help_of(action))


def test_usage_of_an_engine_has_the_model_first() -> None:
    [parser] = parsers_of(("engine",))
    assert parser.usage == "fairlead engine MODEL [flags]"


def test_help_of_the_router_names_its_command_for_keys() -> None:
    [parser] = parsers_of(("router",))
    assert "fairlead router key NAME" in parser.format_help()


@pytest.fixture
def taken() -> Iterator[str]:
    with socket.create_server(("0.0.0.0", 0)) as listener:
        yield str(listener.getsockname()[1])


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ([*ENDPOINT, f"--port={TAKEN}", "--metrics-port=0"], f"can't listen on 127.0.0.1:{TAKEN}: "),
        ([*ENDPOINT, "--port=0", f"--metrics-port={TAKEN}"], f"can't listen on 127.0.0.1:{TAKEN}: "),
        ([*ENDPOINT, "--port=70000", "--metrics-port=0"], "can't listen on 127.0.0.1:70000: "),
        (["router", "--kubernetes", "--kubeconfig=/nowhere"], "No such file or directory: '/nowhere'"),
        (["up", "pypi://none", f"--port={TAKEN}"], f"can't listen on 127.0.0.1:{TAKEN}: "),
        (["up", "none.yaml"], "none.yaml: cannot be read: No such file or directory"),
        (["up", NOT_YAML], "is not YAML: "),
        (["up", "-"], "-: there is no LLMDeployment"),
        (["fetch", "./none"], "./none: no folder at"),
        (["fetch", "pypi://none", "--to=/proc/none"], "cannot be written to /proc/none"),
        (["fetch", "./none", f"--progress-port={TAKEN}"], f"can't listen on [::]:{TAKEN}: "),
        (["bench", "--base-url=http://127.0.0.1:1", "--model=m"], "the first request failed: "),
    ],
)
def test_what_a_user_can_cause_ends_with_a_sentence(
    call: Call, words: list[str], complaint: str, taken: str, tmp_path: Path
) -> None:
    (tmp_path / "bad.yaml").write_text("a: [")
    replaced = {TAKEN: taken, NOT_YAML: str(tmp_path / "bad.yaml")}
    for name, value in replaced.items():
        words = [word.replace(name, value) for word in words]
        complaint = complaint.replace(name, value)

    done = call(words)

    assert done.returncode in (1, 2, UNUSABLE)
    assert complaint in done.stderr
    assert "Traceback" not in done.stderr


def test_a_process_without_a_cluster_ends_with_a_sentence_and_a_status(tmp_path: Path) -> None:
    done = run([*OPERATOR, "--health-port=0"], HOME=str(tmp_path))

    assert (done.returncode, "Traceback" in done.stderr) == (1, False)
    assert re.search(r"(?m)^\d{4}-\d\d-\d\d \S+ ERROR operator: no cluster: ", done.stderr)


@pytest.mark.parametrize("content", ["a: [", "{}", "just words"])
def test_a_kubeconfig_that_cannot_be_used_is_named(call: Call, content: str, tmp_path: Path) -> None:
    (tmp_path / "config").write_text(content)

    done = call([*OPERATOR, "--health-port=0"], KUBECONFIG=str(tmp_path / "config"))

    assert (done.returncode, "Traceback" in done.stderr) == (1, False)
    assert "no cluster: " in done.stderr


@pytest.mark.parametrize("content", ["a: [", "just words", "contexts: 3", SERVERLESS])
def test_a_router_names_a_kubeconfig_that_cannot_be_used(call: Call, content: str, tmp_path: Path) -> None:
    (tmp_path / "config").write_text(content)

    done = call(["router", "--kubernetes", f"--kubeconfig={tmp_path / 'config'}"])

    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    assert "the kubeconfig cannot be used: " in done.stderr


def test_a_health_port_in_use_ends_the_operator(call: Call, taken: str, tmp_path: Path) -> None:
    (tmp_path / "config").write_text(kubeconfig("http://127.0.0.1:1"))

    done = call([*OPERATOR, f"--health-port={taken}"], KUBECONFIG=str(tmp_path / "config"))

    assert (done.returncode, "Traceback" in done.stderr) == (1, False)
    assert f"can't listen on port {taken}: " in done.stderr


# Programs that log at least one line and end, with the component of the line.
LOGGING = [
    pytest.param(
        [*ENDPOINT, f"--port={TAKEN}", "--metrics-port=0"], "router", "can't listen on", id="router"
    ),
    pytest.param([*OPERATOR, "--health-port=0"], "operator", "no cluster", id="operator"),
    pytest.param(["fetch", "pypi://none"], "fetch", "downloading none", id="fetch"),
]


@pytest.mark.parametrize(("words", "component", "message"), LOGGING)
def test_log_lines_have_time_level_and_component(
    call: Call, words: list[str], component: str, message: str, taken: str, tmp_path: Path
) -> None:
    words = [word.replace(TAKEN, taken) for word in words]
    (tmp_path / "config").write_text("{}")
    variables = {"KUBECONFIG": str(tmp_path / "config")}

    text = call(words, **variables).stderr
    objects = call([*words, "--log-format=json"], **variables).stderr

    assert re.search(rf"(?m)^\d{{4}}-\d\d-\d\d \S+ (INFO|ERROR) {component}: .*{message}", text)
    lines = [json.loads(line) for line in objects.splitlines() if line.startswith("{")]
    assert {line["component"] for line in lines} == {component}
    assert any(message in line["message"] for line in lines)
    assert all(line["time"] and line["level"] in LEVELS for line in lines)


def test_level_of_logs_is_that_of_the_flag_or_of_the_environment(call: Call) -> None:
    words = ["fetch", "pypi://none"]

    assert " INFO fetch: " in call(words).stderr
    assert " INFO fetch: " not in call([*words, "--log-level=warning"]).stderr
    assert " INFO fetch: " not in call(words, FAIRLEAD_LOG_LEVEL="ERROR").stderr


def test_level_of_logs_that_does_not_exist_is_named(call: Call) -> None:
    logged = call(["fetch", "pypi://none"], FAIRLEAD_LOG_LEVEL="loud").stderr
    assert (
        "FAIRLEAD_LOG_LEVEL is 'loud', and can be debug, info, warning, error; it is taken for info" in logged
    )
    assert " INFO fetch: " in logged


def kubeconfig(server: str) -> str:
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "a", "cluster": {"server": server}}],
            "users": [{"name": "a", "user": {"token": "a-secret"}}],
            "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
            "current-context": "a",
        }
    )


class Reviews(BaseHTTPRequestHandler):
    """Answers of an API server that lets its users list."""

    def do_POST(self) -> None:
        review = json.loads(self.rfile.read(int(self.headers["content-length"])))
        allowed = review["spec"]["resourceAttributes"]["verb"] == "list"
        body = json.dumps({"status": {"allowed": allowed}}).encode()
        self.send_response(201)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Log no requests."""


def test_verbose_version_has_what_a_bug_report_needs_and_no_secret(tmp_path: Path) -> None:
    with HTTPServer(("127.0.0.1", 0), Reviews) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        (tmp_path / "config").write_text(kubeconfig(address))
        done = run(
            ["version", "--verbose"], KUBECONFIG=str(tmp_path / "config"), HOME=str(tmp_path / "alice")
        )
        server.shutdown()

    assert done.returncode == 0, done.stderr
    lines = dict(line.split(": ", 1) for line in done.stdout.splitlines()[1:])
    assert set(lines) == {
        "python", "system", "cpu", "kernels", "memory", "disk", "gpu", "torch", "transformers", "triton", "cluster"
    }  # fmt: skip
    assert lines["cluster"] == (
        "list llmdeployments: yes; create llmdeployments: no; create customresourcedefinitions: no"
    )
    assert not any(secret in done.stdout for secret in ("a-secret", address, "alice"))


def test_verbose_version_needs_no_cluster(tmp_path: Path) -> None:
    (tmp_path / "config").write_text(kubeconfig("http://127.0.0.1:1"))

    assert "cluster: no kubeconfig" in run(["version", "--verbose"], HOME=str(tmp_path)).stdout
    unreachable = run(["version", "--verbose"], KUBECONFIG=str(tmp_path / "config"))
    assert "cluster: does not answer (URLError)" in unreachable.stdout
