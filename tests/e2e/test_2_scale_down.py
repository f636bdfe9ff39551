"""A scale-down removes the replica that has the fewest requests."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
from waiting import until

pytestmark = pytest.mark.e2e

NAMESPACE = "team-a"
STREAMS = 2


def stream(engine: openai.OpenAI) -> str:
    """Stream a long answer and return how it ended."""
    chunks = engine.completions.create(
        model=f"{NAMESPACE}/smollm2",
        prompt="Once upon a time",
        max_tokens=900,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    return str([chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1])


def ready_since(pod: Any) -> str:
    conditions = pod["status"]["conditions"]
    return next(str(each["lastTransitionTime"]) for each in conditions if each["type"] == "Ready")


def test_scale_down_removes_the_idle_replica_and_breaks_no_stream(cluster: Any, smollm2: str) -> None:
    # Of replicas that cost the same, Kubernetes removes the newest.
    busy = max(cluster.pods(smollm2, NAMESPACE), key=ready_since)["metadata"]["name"]
    (idle,) = {pod["metadata"]["name"] for pod in cluster.pods(smollm2, NAMESPACE)} - {busy}

    # Past the router, which sends a replica that became ready seconds ago only a part of the requests.
    with (
        cluster.forward(busy, NAMESPACE, 8000) as address,
        openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0, timeout=120) as engine,
        ThreadPoolExecutor(STREAMS) as pool,
    ):
        streams = [pool.submit(stream, engine) for _ in range(STREAMS)]

        def all_run() -> bool:
            for ended in (future for future in streams if future.done()):
                pytest.fail(f"a stream has ended: {ended.exception() or ended.result()}")
            return bool(cluster.metric(busy, NAMESPACE, "vllm:num_requests_running") == STREAMS)

        until(all_run, f"{STREAMS} streams on {busy}")
        assert cluster.metric(idle, NAMESPACE, "vllm:num_requests_running") == 0
        cluster.kubectl("scale", "llmd", smollm2, "-n", NAMESPACE, "--replicas=1")
        cluster.wait_replicas(smollm2, NAMESPACE, 1)
        ends = [future.result() for future in streams]

    assert [pod["metadata"]["name"] for pod in cluster.pods(smollm2, NAMESPACE)] == [busy]
    assert ends == ["length"] * STREAMS
    cluster.kubectl("scale", "llmd", smollm2, "-n", NAMESPACE, "--replicas=2")
    cluster.wait_replicas(smollm2, NAMESPACE, 2)
