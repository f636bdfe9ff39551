"""A request to a deployment at zero replicas, beside the start of a replica without one.

    python -m benchmarks.from_zero team-a/chat --router http://HOST:PORT [--rounds 5]

The LLMDeployment exists, on the cluster of KUBECONFIG, with `autoscaling: {min: 0}` and an `idleSeconds` that is longer
than a round. In each round it is scaled to zero twice, until its last pod is gone: once it is then started by
`kubectl scale`, which measures the time until its pod is ready; once by a request, which measures the time until its
answer. The difference of the medians is the cost of the router's wake, of the detection of the ready replica, and of
the request itself. The target is 1 s; the exit status is 1 above it.
"""

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import aiohttp

from benchmarks.record import save
from engine_server.contract.cluster.labels import selector_text

TARGET_SECONDS = 1.0
ANSWER_SECONDS = 900.0
# Between two looks at the pods.
LOOK_SECONDS = 0.1


class Deployment:
    """One LLMDeployment, used through kubectl."""

    def __init__(self, namespace: str, name: str) -> None:
        self.namespace = namespace
        self.name = name

    async def kubectl(self, *arguments: str) -> str:
        process = await asyncio.create_subprocess_exec(
            "kubectl", "-n", self.namespace, *arguments, stdout=asyncio.subprocess.PIPE
        )
        output, _ = await process.communicate()
        if process.returncode:
            raise SystemExit(f"kubectl {' '.join(arguments)} failed")
        return output.decode()

    async def scale(self, replicas: int) -> None:
        await self.kubectl("scale", f"llmd/{self.name}", f"--replicas={replicas}")

    async def until(self, holds: Callable[[list[dict[str, Any]]], bool]) -> None:
        """Wait until a condition holds for the pods."""
        while True:
            text = await self.kubectl("get", "pods", "-l", selector_text(self.name), "-o", "json")
            if holds(json.loads(text)["items"]):
                return
            await asyncio.sleep(LOOK_SECONDS)

    async def stop(self) -> None:
        """Scale to zero, and wait until the last pod is gone."""
        await self.scale(0)
        await self.until(lambda pods: not pods)


def is_ready(pod: dict[str, Any]) -> bool:
    conditions = pod.get("status", {}).get("conditions", ())
    return any((one["type"], one["status"]) == ("Ready", "True") for one in conditions)


async def measure_start(deployment: Deployment) -> float:
    """Return the seconds from a scale to 1 to the pod's readiness."""
    begun = time.perf_counter()
    await deployment.scale(1)
    await deployment.until(lambda pods: any(map(is_ready, pods)))
    return time.perf_counter() - begun


async def measure_request(deployment: Deployment, router: str) -> float:
    """Return the seconds from a request to its answer of one token."""
    body = {"model": f"{deployment.namespace}/{deployment.name}", "prompt": "The sea is", "max_tokens": 1}
    timeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS)
    begun = time.perf_counter()
    async with (
        aiohttp.ClientSession(timeout=timeout, raise_for_status=True) as session,
        session.post(f"{router}/v1/completions", json=body) as response,
    ):
        await response.read()
    return time.perf_counter() - begun


async def measure(deployment: Deployment, router: str, rounds: int) -> dict[str, Any]:
    """Return the times of all rounds in seconds, and the difference of their medians."""
    starts, requests = [], []
    for _ in range(rounds):
        await deployment.stop()
        starts.append(await measure_start(deployment))
        await deployment.stop()
        requests.append(await measure_request(deployment, router))
        print(f"start {starts[-1]:6.2f} s   request {requests[-1]:6.2f} s", flush=True)
    added = statistics.median(requests) - statistics.median(starts)
    return {"starts": starts, "requests": requests, "added_seconds": added}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("deployment", metavar="NAMESPACE/NAME")
    parser.add_argument("--router", required=True, metavar="URL")
    parser.add_argument("--rounds", type=int, default=5)
    flags = parser.parse_args()
    namespace, _, name = flags.deployment.partition("/")
    figures = asyncio.run(measure(Deployment(namespace, name), flags.router, flags.rounds))
    print(f"a request from zero takes {figures['added_seconds']:.2f} s more than the start of a replica")
    print(f"saved in {save('from_zero', figures)}")
    return int(figures["added_seconds"] > TARGET_SECONDS)


if __name__ == "__main__":
    raise SystemExit(main())
