"""Record the session of README's first screen on a cluster, as text in docs/terminal.txt.

    python -m scripts.terminal.record http://ROUTER [--uri pvc://models/smollm2]

The cluster is that of kubectl's context. Fairlead must run there (`make kind` installs it), and the context's namespace
have no LLMDeployment called `chat`. bash, curl, sed and jq must be on the PATH. `make figures` draws docs/terminal.svg
from the text.
"""

import argparse
import os
import re
import select
import signal
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEXT = ROOT / "docs" / "terminal.txt"
EXAMPLE = ROOT / "examples" / "chat.yaml"

# The columns of the terminal.
WIDTH = 100
PROMPT, SECOND_PROMPT = "$ ", "[second terminal] $ "

APPLY = "kubectl apply -f chat.yaml"
WATCH = "kubectl get llmd chat -w"
ASK = """\
curl -sN $ROUTER/v1/completions --json '{"model": "chat", "stream": true, "max_tokens": 110,
    "temperature": 0, "prompt": "The lighthouse keeper"}' | sed -un 's/^data: {/{/p' |
    jq -j --unbuffered '.choices[0].text'"""
KILL = "kubectl exec {pod} -c engine -- sh -c 'kill -9 -1'"
LIST = "kubectl get pods"
COMMANDS = (APPLY, WATCH, ASK, KILL, LIST)

# The engine is killed once so many characters of the answer have arrived.
CHARACTERS_BEFORE_KILL = 40


@dataclass(frozen=True, slots=True)
class Shell:
    """Runs commands as a user would."""

    folder: Path
    environment: dict[str, str]

    def start(self, command: str) -> subprocess.Popen[bytes]:
        """Start a command with its standard output as a pipe, in a process group of its own."""
        return subprocess.Popen(
            ["bash", "-c", command],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )

    def run(self, command: str, check: bool = True) -> str:
        """Run a command and return what it prints."""
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if check and done.returncode:
            raise SystemExit(f"{command}\n{done.stdout}")
        return done.stdout


@dataclass(slots=True)
class Transcript:
    """The lines that a terminal shows."""

    lines: list[str] = field(default_factory=list)

    def command(self, command: str, prompt: str = PROMPT) -> None:
        self.lines += (prompt + command).splitlines()

    def output(self, text: str) -> None:
        """Add lines of output, wrapped as a terminal wraps them."""
        for line in text.strip("\n").splitlines():
            parts = [line[start : start + WIDTH] for start in range(0, len(line), WIDTH)] or [""]
            self.lines += [part.rstrip() for part in parts]


def watch_until_ready(shell: Shell) -> str:
    """Return what `kubectl get -w` prints until both replicas are ready and it is interrupted."""
    rows = ""
    with shell.start(WATCH) as watch:
        assert watch.stdout is not None
        for line in watch.stdout:
            rows += line.decode()
            if line.split()[2:4] == [b"2", b"2"]:
                break
        os.killpg(watch.pid, signal.SIGINT)
    return rows + "^C"


def read_at_least(pipe: int, characters: int) -> str:
    """Return the text that has arrived once it has so many characters."""
    text = b""
    while len(text) < characters:
        part = os.read(pipe, 4096)
        if not part:
            raise SystemExit(f"the answer ended after {len(text)} bytes")
        text += part
    while select.select([pipe], [], [], 0)[0] and (part := os.read(pipe, 4096)):
        text += part
    return text.decode()


def read_to_end(pipe: int) -> str:
    text = b""
    while part := os.read(pipe, 4096):
        text += part
    return text.decode()


def answering_pod(shell: Shell, pods: list[str], namespace: str) -> str:
    """Return the pod whose engine has a request."""
    for pod in pods:
        path = f"/api/v1/namespaces/{namespace}/pods/{pod}:8000/proxy/metrics"
        metrics = shell.run(f"kubectl get --raw {path}")
        if re.search(r"^vllm:num_requests_running.* [1-9]", metrics, re.MULTILINE):
            return pod
    raise SystemExit("no engine has the request")


def stream_through_a_kill(shell: Shell, transcript: Transcript) -> str:
    """Ask, kill the engine that answers, and return the answer. The transcript has both."""
    pods = shell.run("kubectl get pods -o name -l fairlead.dev/llmdeployment=chat | cut -d/ -f2").split()
    namespace = shell.run("kubectl config view --minify -o jsonpath='{..namespace}'") or "default"
    transcript.command(ASK)
    with shell.start(ASK) as stream:
        assert stream.stdout is not None
        pipe = stream.stdout.fileno()
        before = read_at_least(pipe, CHARACTERS_BEFORE_KILL)
        pod = answering_pod(shell, pods, namespace)
        kill = KILL.format(pod=pod)
        before += read_at_least(pipe, 0)
        printed = shell.run(kill, check=False)
        if stream.poll() is not None:
            raise SystemExit("the answer ended before its engine was killed")
        after = read_to_end(pipe)
    transcript.output(before)
    transcript.command(kill, SECOND_PROMPT)
    transcript.output(printed)
    transcript.output(after)
    shell.run(f"kubectl wait --for=jsonpath='{{.status.containerStatuses[0].restartCount}}'=1 pod/{pod}")
    return before + after


def record(router: str, uri: str | None) -> str:
    """Return the transcript of the session. The LLMDeployment is deleted at its end."""
    manifest = EXAMPLE.read_text()
    if uri:
        manifest = re.sub(r"uri: .*", f"uri: {uri}", manifest)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "chat.yaml").write_text(manifest)
        shell = Shell(Path(folder), os.environ | {"ROUTER": router})
        transcript = Transcript()
        try:
            transcript.command(APPLY)
            transcript.output(shell.run(APPLY))
            transcript.command(WATCH)
            transcript.output(watch_until_ready(shell))
            answer = stream_through_a_kill(shell, transcript)
            transcript.command(LIST)
            transcript.output(shell.run(LIST))
            if answer != shell.run(ASK):
                raise SystemExit("the answer differs from that of an undisturbed run")
        finally:
            shell.run("kubectl delete -f chat.yaml --ignore-not-found")
    return "\n".join(transcript.lines) + "\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Record the session of README's first screen.")
    parser.add_argument("router", help="the router's address, such as http://127.0.0.1:8080")
    parser.add_argument("--uri", help="another model than that of examples/chat.yaml")
    arguments = parser.parse_args()
    TEXT.write_text(record(arguments.router, arguments.uri))
