"""A real Kubernetes API server for the tests, etcd and kube-apiserver: one for each process that runs tests."""

import fcntl
import os
import re
import secrets
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from chart_manifests import YAML_LOADER
from waiting import until

# The client is imported once it is needed: this is a plugin of all tests, and not all need an operator.
if TYPE_CHECKING:
    from kubernetes_client import Client

ROOT = Path(__file__).parent.parent
CLUSTER = ROOT.parent / "shared" / "cluster" / "cluster"
CRD = ROOT / "charts" / "fairlead" / "files" / "llmdeployment-crd.yaml"
TOKEN = "tests-only"


@dataclass(frozen=True)
class ApiServer:
    """`kubeconfig` is an administrator's; `assets` is the folder with kubectl."""

    kubeconfig: Path
    assets: Path

    @property
    def url(self) -> str:
        return self.client.url

    @cached_property
    def client(self) -> "Client":
        """A client with an administrator's rights."""
        from kubernetes_client import Client

        return Client(self.kubeconfig)

    def kubectl(self, *arguments: str, stdin: object = None) -> subprocess.CompletedProcess[str]:
        """Run kubectl without checking its exit code; `stdin` is passed as YAML."""
        return subprocess.run(
            [self.assets / "kubectl", *arguments],
            env={**os.environ, "KUBECONFIG": str(self.kubeconfig)},
            input=yaml.safe_dump(stdin) if stdin is not None else None,
            capture_output=True,
            text=True,
            timeout=60,
        )


@pytest.fixture(scope="session")
def api_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    assets = find_assets()
    folder = tmp_path_factory.mktemp("kubernetes")
    etcd_port, etcd_peer_port, port = free_port(), free_port(), free_port()
    (folder / "tokens.csv").write_text(f"{TOKEN},admin,admin,system:masters\n")
    key = folder / "service-accounts.key"
    subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
    etcd = [
        assets / "etcd",
        f"--data-dir={folder / 'etcd'}",
        f"--listen-client-urls=http://127.0.0.1:{etcd_port}",
        f"--advertise-client-urls=http://127.0.0.1:{etcd_port}",
        f"--listen-peer-urls=http://127.0.0.1:{etcd_peer_port}",
        "--unsafe-no-fsync",
        "--log-level=error",
    ]
    apiserver = [
        assets / "kube-apiserver",
        f"--etcd-servers=http://127.0.0.1:{etcd_port}",
        "--bind-address=127.0.0.1",
        "--advertise-address=127.0.0.1",
        "--endpoint-reconciler-type=none",
        f"--secure-port={port}",
        f"--cert-dir={folder / 'certs'}",
        f"--token-auth-file={folder / 'tokens.csv'}",
        "--authorization-mode=RBAC",
        "--allow-privileged=true",
        "--service-cluster-ip-range=198.19.0.0/16",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={key}",
        f"--service-account-signing-key-file={key}",
        "--disable-admission-plugins=ServiceAccount",
        "--enable-admission-plugins=OwnerReferencesPermissionEnforcement",  # as on OpenShift
    ]
    url = f"https://127.0.0.1:{port}"
    with running(etcd, folder / "etcd.log"), running(apiserver, folder / "kube-apiserver.log") as process:
        server = ApiServer(kubeconfig(folder, url), assets)
        await_ready(server.client, process, folder / "kube-apiserver.log")
        yield server


@pytest.fixture(scope="session")
def definition(api_server: ApiServer) -> None:
    """Install the CRD."""
    api_server.client.apply(yaml.load(CRD.read_text(), YAML_LOADER))
    until(lambda: api_server.client.serves("fairlead.dev/v1alpha1", "LLMDeployment"))


@cache
def find_assets() -> Path:
    """Return the folder with etcd, kube-apiserver and kubectl, laid out like envtest's."""
    named = os.environ.get("KUBEBUILDER_ASSETS")
    if named:
        return Path(named)
    if CLUSTER.is_file():
        # The first call unpacks the binaries, which no other process may start meanwhile.
        with Path(tempfile.gettempdir(), "fairlead-assets.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            printed = subprocess.run([CLUSTER, "assets"], check=True, capture_output=True, text=True).stdout
        found = re.search(r"^export KUBEBUILDER_ASSETS=(.+)$", printed, re.MULTILINE)
        assert found, f"{CLUSTER} assets did not print KUBEBUILDER_ASSETS: {printed!r}"
        return Path(found[1])
    pytest.skip(f"no API server to test against: KUBEBUILDER_ASSETS is not set and there is no {CLUSTER}")


def free_port() -> int:
    """Return a port on which nothing listens, below those that Linux gives to outgoing connections."""
    while True:
        port = secrets.choice(range(10_000, 32_768))
        with socket.socket() as listener, suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port


@contextmanager
def running(command: list[Any], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def kubeconfig(folder: Path, url: str) -> Path:
    file = folder / "kubeconfig"
    authority = (
        folder / "certs" / "apiserver.crt"
    )  # generated by the server, with its issuer in the same file
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "tests",
        "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": "admin"}}],
        "clusters": [{"name": "tests", "cluster": {"server": url, "certificate-authority": str(authority)}}],
        "users": [{"name": "admin", "user": {"token": TOKEN}}],
    }
    file.write_text(yaml.safe_dump(config))
    return file


def await_ready(client: "Client", process: subprocess.Popen[bytes], log: Path) -> None:
    def ready() -> bool:
        if process.poll() is not None:
            pytest.fail(f"kube-apiserver ended:\n{log.read_text()[-3000:]}")
        return client.is_ready()

    until(ready, "kube-apiserver's start")


def kubeconfig_of(token: str, original: Path, name: str) -> Path:
    """Return a copy of a kubeconfig, beside it, with another token."""
    config = yaml.safe_load(original.read_text())
    config["users"][0]["user"] = {"token": token}
    file = original.with_name(name)
    file.write_text(yaml.safe_dump(config))
    return file
