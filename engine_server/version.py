"""`fairlead version`: the version, and what this machine has, in a form for bug reports."""

import argparse
import asyncio
import json
import platform
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping
from http.client import HTTPException
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from engine_server.contract.base.command_line import Parser
from engine_server.contract.base.version import VERSION
from engine_server.contract.cluster.api import GROUP
from engine_server.contract.cluster.downloads import amount
from engine_server.model_sources.store import cache
from engine_server.modeling.native.levels import LEVELS, instruction_level, library_file
from engine_server.modeling.platform.cpu_quota import available_cpus
from engine_server.router.sources.kubernetes.access import Access, AccessError, find_access
from engine_server.router.sources.kubernetes.login_plugin import LoginError

PACKAGES = ("torch", "transformers", "triton")
CPU_INFO, MEMORY_INFO = Path("/proc/cpuinfo"), Path("/proc/meminfo")
# Rights of the user in a cluster: verb, API group, resource.
RIGHTS = (
    ("list", GROUP, "llmdeployments"),
    ("create", GROUP, "llmdeployments"),
    ("create", "apiextensions.k8s.io", "customresourcedefinitions"),
)
REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
CLUSTER_SECONDS = 5.0
DRIVER_SECONDS = 10.0


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(prog="fairlead version", description="Print the version.")
    parser.add_argument(
        "--verbose",
        action="store_true",
        help="print what this machine has too, for bug reports: no name, address or key is among it",
    )
    return parser


def main(argv: list[str]) -> int:
    flags = build_parser().parse_args(argv)
    print(f"fairlead {VERSION}")
    if flags.verbose:
        for line in machine():
            print(line, flush=True)
    return 0


def machine() -> Iterator[str]:
    """Yield a line for each property of this machine."""
    yield f"python: {platform.python_version()}"
    yield f"system: {platform.system()} {platform.release()} {platform.machine()}"
    yield f"cpu: {listed(CPU_INFO, 'model name') or 'unknown'}; {available_cpus()} cores may be used"
    yield f"kernels: {kernels()}"
    yield f"memory: {memory('MemTotal')}; {memory('MemAvailable')} are available"
    yield f"disk: {amount(free_bytes(cache()))} are free for models"
    yield f"gpu: {gpus()}"
    for package in PACKAGES:
        try:
            yield f"{package}: {version(package)}"
        except PackageNotFoundError:
            yield f"{package}: not installed"
    yield f"cluster: {cluster()}"


def listed(file: Path, key: str) -> str:
    """Return the first value of a key in a file of Linux's /proc, or nothing."""
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return ""
    pairs = (line.partition(":") for line in lines)
    return next((value.strip() for name, _, value in pairs if name.strip() == key), "")


def memory(key: str) -> str:
    kilobytes = listed(MEMORY_INFO, key).removesuffix(" kB")
    return amount(int(kilobytes) << 10) if kilobytes else "unknown"


def kernels() -> str:
    level = instruction_level()
    if level not in LEVELS:
        return f"none for {level}; plain torch is used"
    return f"{level}, {'compiled' if library_file(level).exists() else 'not compiled: plain torch is used'}"


def free_bytes(folder: Path) -> int:
    """Return the free bytes of a folder that may not exist yet."""
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def gpus() -> str:
    """Return the GPUs that NVIDIA's driver lists."""
    smi = shutil.which("nvidia-smi")
    if smi is None:
        return "no NVIDIA driver"
    query = [smi, "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=DRIVER_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return "nvidia-smi does not answer"
    return "; ".join(done.stdout.splitlines()) or "none that nvidia-smi lists"


def cluster() -> str:
    """Return the rights in the cluster of the kubeconfig or of the pod."""
    try:
        access = find_access(None)
    except AccessError:
        return "no kubeconfig that can be used"
    try:
        headers = asyncio.run(access.headers())
        answers = [
            f"{verb} {resource}: {may(access, headers, verb, group, resource)}"
            for verb, group, resource in RIGHTS
        ]
    except (OSError, ValueError, LookupError, TypeError, HTTPException, LoginError) as error:
        return f"does not answer ({type(error).__name__})"
    return "; ".join(answers)


def may(access: Access, headers: Mapping[str, str], verb: str, group: str, resource: str) -> str:
    """Ask the API server for one right. Raises OSError or ValueError."""
    attributes = {"verb": verb, "group": group, "resource": resource}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    request = urllib.request.Request(  # noqa: S310
        f"{access.server}{REVIEWS}",
        json.dumps(review).encode(),
        {"Content-Type": "application/json", **headers},
    )
    with urllib.request.urlopen(request, timeout=CLUSTER_SECONDS, context=access.tls) as answer:  # noqa: S310
        return "yes" if json.load(answer)["status"]["allowed"] else "no"
