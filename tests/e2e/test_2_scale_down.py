"""A scale-down removes the replica that has the fewest requests."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
from waiting import until

pytestmark = pytest.mark.e2e

NAMESPACE = "team-a"


def ready_since(pod: Any) -> str:
    conditions = pod["status"]["conditions"]
    return next(str(each["lastTransitionTime"]) for each in conditions if each["type"] == "Ready")


def stream_on(cluster: Any, client: openai.OpenAI, busy: str, idle: str) -> openai.Stream[Any]:
    """Return a long answer that this one of two replicas streams: the router chooses it by the prompt."""

    def running() -> set[str]:
        return {pod for pod in (busy, idle) if cluster.metric(pod, NAMESPACE, "vllm:num_requests_running")}

    for number in range(64):
        until(lambda: not running(), "no request is in flight")
        stream = client.completions.create(
            model="smollm2",
            prompt=f"Story {number}:",
            max_tokens=900,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        if until(running, "the stream runs on a replica") == {busy}:
            return stream
        stream.close()
    pytest.fail(f"no stream reached {busy}")


def finish_reason(stream: openai.Stream[Any]) -> str:
    return str([chunk.choices[0].finish_reason for chunk in stream if chunk.choices][-1])


def test_scale_down_removes_the_idle_replica_and_breaks_no_stream(
    cluster: Any, smollm2: str, client: openai.OpenAI
) -> None:
    # Of replicas that cost the same, Kubernetes removes the newest.
    oldest, newest = sorted(cluster.pods(smollm2, NAMESPACE), key=ready_since)
    idle, busy = oldest["metadata"]["name"], newest["metadata"]["name"]

    with stream_on(cluster, client, busy, idle) as stream, ThreadPoolExecutor(1) as pool:
        end = pool.submit(finish_reason, stream)
        cluster.kubectl("scale", "llmd", smollm2, "-n", NAMESPACE, "--replicas=1")
        cluster.wait_replicas(smollm2, NAMESPACE, 1)
        assert end.result() == "length"

    assert [pod["metadata"]["name"] for pod in cluster.pods(smollm2, NAMESPACE)] == [busy]
    cluster.kubectl("scale", "llmd", smollm2, "-n", NAMESPACE, "--replicas=2")
    cluster.wait_replicas(smollm2, NAMESPACE, 2)
