"""Preparation of a cluster for the end-to-end tests: it is started, and the images are built and loaded."""

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from cluster import ROOT

SCRIPT = ROOT.parent / "shared" / "cluster" / "cluster"
IMAGE = "fairlead:dev"
CONTROL_PLANE_IMAGE = "fairlead-control-plane:dev"
SMALL = ("--target", "control-plane")


@dataclass(frozen=True, slots=True)
class Prepared:
    """A cluster that has the images, or can pull them."""

    environment: dict[str, str]
    image: str
    # Without an engine.
    control_plane_image: str
    # It was started for the tests, and is to be stopped after them.
    is_ours: bool

    def stop(self) -> None:
        if self.is_ours:
            subprocess.run([SCRIPT, "down"], check=True)


def prepare() -> Prepared:
    """Start the cluster unless there is one, and bring the images there. What can't be done ends the tests."""
    environment = dict(os.environ)
    is_ours = False
    if "KUBECONFIG" not in environment:
        if not SCRIPT.exists():
            pytest.exit("the end-to-end tests need a cluster: set KUBECONFIG (kind works)", returncode=2)
        is_ours = not answers(started(environment)) and "KEEP_CLUSTER" not in environment
        subprocess.run([SCRIPT, "up", "--nodes", "2"], check=True, stdout=subprocess.DEVNULL)
        environment = started(environment)
    image = environment.get("E2E_IMAGE", IMAGE)
    small = environment.get("E2E_CONTROL_PLANE_IMAGE", CONTROL_PLANE_IMAGE if image == IMAGE else image)
    prepared = Prepared(environment, image, small, is_ours)
    try:
        if has_fairlead(environment):
            pytest.exit("this cluster has Fairlead in it already: these tests would remove it", returncode=2)
        if "E2E_IMAGE" not in environment:
            deliver(environment)
    except BaseException:
        prepared.stop()
        raise
    return prepared


def started(environment: dict[str, str]) -> dict[str, str]:
    exports = subprocess.run([SCRIPT, "env"], capture_output=True, text=True, check=True).stdout
    settings = dict(line.removeprefix("export ").split("=", 1) for line in exports.splitlines())
    settings["PATH"] = settings["PATH"].replace("$PATH", environment["PATH"])
    return environment | settings


def answers(environment: dict[str, str]) -> bool:
    try:
        probe = ["kubectl", "get", "--raw", "/readyz", "--request-timeout=5s"]
        return subprocess.run(probe, env=environment, capture_output=True).returncode == 0
    except FileNotFoundError:  # kubectl comes with the cluster, the first time
        return False


def has_fairlead(environment: dict[str, str]) -> bool:
    command = ["kubectl", "get", "crd", "-l", "app.kubernetes.io/name=fairlead", "-o", "name"]
    return bool(subprocess.run(command, env=environment, capture_output=True, check=True).stdout)


def deliver(environment: dict[str, str]) -> None:
    """Build the images from this checkout and load them on every node. Most of their stages are shared."""

    def call(*command: str | Path) -> None:
        done = subprocess.run(
            command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        if done.returncode:
            pytest.exit(f"{' '.join(map(str, command))}\n{done.stdout.decode()[-4000:]}", returncode=2)

    context = subprocess.run(
        ["kubectl", "config", "current-context"], env=environment, capture_output=True, text=True
    ).stdout.strip()
    if context.startswith("kind-"):
        call("docker", "build", "--tag", IMAGE, ".")
        call("docker", "build", "--tag", CONTROL_PLANE_IMAGE, *SMALL, ".")
        name = context.removeprefix("kind-")
        call("kind", "load", "docker-image", IMAGE, CONTROL_PLANE_IMAGE, "--name", name)
    elif SCRIPT.exists() and started(environment)["KUBECONFIG"] == environment["KUBECONFIG"]:
        # The first measurements of metrics-server take half a minute.
        with subprocess.Popen([SCRIPT, "metrics"], env=environment):
            call(SCRIPT, "build", ".", IMAGE)
            call(SCRIPT, "build", ".", CONTROL_PLANE_IMAGE, *SMALL)
            for image in (IMAGE, CONTROL_PLANE_IMAGE):
                call(SCRIPT, "load", image)
    else:
        pytest.exit(
            "no way to bring an image onto this cluster: push one, and name it in E2E_IMAGE", returncode=2
        )
