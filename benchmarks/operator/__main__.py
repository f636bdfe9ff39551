"""The operator at scale, on a cluster with kwok nodes, whose pods become ready without running.

    cluster up && cluster kwok 60 && eval "$(cluster env)"
    kubectl apply --server-side -f charts/fairlead/files/llmdeployment-crd.yaml
    python -m benchmarks.operator --deployments 100 --pods 10 --baseline
    python -m benchmarks.operator --deployments 1000 --pods 10 --edits 100

Each run works in a namespace of its own and deletes it. The baseline is as many bare Deployments, created before in the
same run. KUBECONFIG names the cluster; the CRD must be installed, and no other operator may run.
"""

import argparse
import asyncio
import math
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from kubernetes.aio.client import ApiClient, ApiException, AppsV1Api
from kubernetes.aio.watch import Watch
from llm_operator.control.cluster import Cluster, load_configuration

from benchmarks.record import save
from benchmarks.router.processes import free_port, resident_mb

NAMESPACE = "benchmark"
LLMDEPLOYMENTS = f"/apis/fairlead.dev/v1alpha1/namespaces/{NAMESPACE}/llmdeployments"
DEPLOYMENTS = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments"
TOLERATION = {"key": "kwok.x-k8s.io/node", "value": "fake", "effect": "NoSchedule"}
KWOK = {"nodeSelector": {"type": "kwok"}, "tolerations": [TOLERATION]}
POLL_SECONDS = 0.5
PARALLEL = 16
IDLE_SECONDS = 60
RELIST_SECONDS = 60
PAGE = "500"


class Edits(NamedTuple):
    """The time from an edit to the changed child, in seconds."""

    p50: float
    p99: float
    worst: float


def llmdeployment(name: str, pods: int) -> dict[str, Any]:
    return {
        "apiVersion": "fairlead.dev/v1alpha1",
        "kind": "LLMDeployment",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"model": {"uri": "/models/x"}, "replicas": pods, "podTemplate": {"spec": KWOK}},
    }


def bare_deployment(name: str, pods: int) -> dict[str, Any]:
    labels = {"app": name}
    container = {"name": "engine", "image": "engine:1"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container], **KWOK}}
    spec = {"replicas": pods, "selector": {"matchLabels": labels}, "template": template}
    metadata = {"name": name, "namespace": NAMESPACE}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}


async def create(cluster: Cluster, path: str, manifests: Iterable[dict[str, Any]]) -> None:
    limit = asyncio.Semaphore(PARALLEL)

    async def one(manifest: dict[str, Any]) -> None:
        async with limit:
            await cluster.call("POST", path, manifest)

    await asyncio.gather(*map(one, manifests))


async def count_ready(cluster: Cluster, path: str, pods: int) -> int:
    """Return the number of objects of which all replicas are ready."""
    ready, token = 0, ""
    while True:
        following: dict[str, Any] = {"continue": token} if token else {}
        page = await cluster.call("GET", path, limit=PAGE, **following)
        ready += sum(item.get("status", {}).get("readyReplicas", 0) >= pods for item in page["items"])
        token = page["metadata"].get("continue", "")
        if not token:
            return ready


async def seconds_until_ready(
    cluster: Cluster, path: str, manifests: Sequence[dict[str, Any]], pods: int
) -> float:
    """Create objects; return the time after which all their replicas are ready."""
    start = time.monotonic()
    await create(cluster, path, manifests)
    while await count_ready(cluster, path, pods) < len(manifests):  # noqa: ASYNC110 (it asks the API server)
        await asyncio.sleep(POLL_SECONDS)
    return time.monotonic() - start


async def time_edits(cluster: Cluster, names: Sequence[str]) -> Edits:
    """Edit LLMDeployments one by one; return the times until their Deployments follow."""
    times = []
    for edit, name in enumerate(names):
        times.append(await time_edit(cluster, name, 1024 + edit))
        # The edits are spread over a relist.
        await asyncio.sleep(RELIST_SECONDS / len(names))
    times.sort()
    return Edits(times[len(times) // 2], times[math.ceil(0.99 * len(times)) - 1], times[-1])


async def time_edit(cluster: Cluster, name: str, max_model_len: int) -> float:
    """Edit an LLMDeployment; return the seconds until a watch reports its Deployment with the new argument."""
    change = {"spec": {"engine": {"maxModelLen": max_model_len}}}
    wanted = f"--max-model-len={max_model_len}"
    watch: Any = Watch()
    reports = watch.stream(
        AppsV1Api(cluster.api).list_namespaced_deployment,
        NAMESPACE,
        field_selector=f"metadata.name={name}-engine",
    )
    async with reports:
        # The Deployment as it is.
        await anext(reports)
        start = time.monotonic()
        await cluster.call("PATCH", f"{LLMDEPLOYMENTS}/{name}", change, "application/merge-patch+json")
        while wanted not in str((await anext(reports))["raw_object"]):
            pass
        return time.monotonic() - start


class Operator:
    """A running operator, and what its metrics say."""

    def __init__(self, process: subprocess.Popen[bytes], port: int) -> None:
        self.process = process
        self.port = port

    def calls(self) -> float:
        """Return the number of calls to the API server so far."""
        return self.total("fairlead_operator_api_requests_total{")

    def is_leader(self) -> bool:
        """Return True once it holds the Lease; False while its metrics cannot be read too."""
        with suppress(OSError):
            return self.total("fairlead_operator_leader ") == 1
        return False

    def total(self, series: str) -> float:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics") as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(series))

    def memory_mb(self) -> float:
        return resident_mb(self.process.pid)


@contextmanager
def operator() -> Iterator[Operator]:
    port = free_port()
    flags = [f"--namespace={NAMESPACE}", f"--lease-namespace={NAMESPACE}", "--engine-image=engine:1"]
    ports = [f"--metrics-port={port}", f"--health-port={free_port()}", f"--relist-seconds={RELIST_SECONDS}"]
    command = [sys.executable, "-m", "engine_server.cli", "operator", *flags, *ports]
    with tempfile.NamedTemporaryFile(prefix="operator-", suffix=".log", delete=False) as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        yield Operator(process, port)
    finally:
        process.terminate()
        process.wait(30)


async def main(deployments: int, pods: int, edits: int, with_baseline: bool, output: Path | None) -> None:
    figures: dict[str, Any] = {"deployments": deployments, "pods": pods}
    async with ApiClient(await load_configuration()) as api:
        cluster = Cluster(api)
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
        await cluster.call("POST", "/api/v1/namespaces", namespace)
        try:
            if with_baseline:
                bare = [bare_deployment(f"bare-{index}", pods) for index in range(deployments)]
                figures["bare_ready_seconds"] = await seconds_until_ready(cluster, DEPLOYMENTS, bare, pods)
                await cluster.call("DELETE", DEPLOYMENTS, {"propagationPolicy": "Foreground"})
                while await count_ready(cluster, DEPLOYMENTS, 0):  # noqa: ASYNC110 (it asks the API server)
                    await asyncio.sleep(POLL_SECONDS)
            with operator() as running:
                while not running.is_leader():  # noqa: ASYNC110 (it asks the operator)
                    await asyncio.sleep(POLL_SECONDS)
                names = [f"model-{index}" for index in range(deployments)]
                manifests = [llmdeployment(name, pods) for name in names]
                figures["ready_seconds"] = await seconds_until_ready(cluster, LLMDEPLOYMENTS, manifests, pods)
                while running.total("fairlead_operator_queued "):  # noqa: ASYNC110 (it asks the operator)
                    await asyncio.sleep(POLL_SECONDS)
                figures["memory_mb"] = running.memory_mb()
                calls = running.calls()
                await asyncio.sleep(IDLE_SECONDS)
                figures["idle_calls_per_second"] = (running.calls() - calls) / IDLE_SECONDS
                figures["edits"] = (await time_edits(cluster, names[:edits]))._asdict()
                figures["memory_mb_after_edits"] = running.memory_mb()
        finally:
            with suppress(ApiException):
                await cluster.call("DELETE", f"/api/v1/namespaces/{NAMESPACE}")
    for name, value in figures.items():
        print(f"{name}: {value}")
    print(save("operator", figures, output))


if __name__ == "__main__":
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--deployments", type=int, default=100)
    flags.add_argument("--pods", type=int, default=10, help="of each (default: %(default)s)")
    flags.add_argument(
        "--edits", type=int, default=50, help="they take longer than a relist's interval with enough"
    )
    flags.add_argument("--baseline", action="store_true", help="as many bare Deployments first")
    flags.add_argument(
        "--output", type=Path, help="the file with the result (default: in benchmarks/results)"
    )
    options = flags.parse_args()
    if "KUBECONFIG" not in os.environ:
        flags.error("set KUBECONFIG to the cluster's")
    asyncio.run(main(options.deployments, options.pods, options.edits, options.baseline, options.output))
