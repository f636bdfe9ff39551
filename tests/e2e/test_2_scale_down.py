"""A scale-down removes the replica that has the fewest requests."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
from waiting import until

pytestmark = pytest.mark.e2e

NAMESPACE = "team-a"


def prompt_for(cluster: Any, client: openai.OpenAI, pod: str) -> str:
    """Return a prompt whose requests the router sends to this replica while it has no others."""
    for number in range(64):
        prompt = f"Story {number}:"
        before = cluster.metric(pod, NAMESPACE, "vllm:request_success_total")
        client.completions.create(model="smollm2", prompt=prompt, max_tokens=1)
        if cluster.metric(pod, NAMESPACE, "vllm:request_success_total") > before:
            return prompt
    pytest.fail(f"no request reached {pod}")


def stream(client: openai.OpenAI, prompt: str) -> str:
    """Stream a long answer and return how it ended."""
    chunks = client.completions.create(
        model="smollm2", prompt=prompt, max_tokens=900, stream=True, extra_body={"ignore_eos": True}
    )
    return str([chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1])


def num_running(cluster: Any, pod: str) -> float:
    return float(cluster.metric(pod, NAMESPACE, "vllm:num_requests_running"))


def ready_since(pod: Any) -> str:
    conditions = pod["status"]["conditions"]
    return next(str(each["lastTransitionTime"]) for each in conditions if each["type"] == "Ready")


def test_scale_down_removes_the_idle_replica_and_breaks_no_stream(
    cluster: Any, smollm2: str, client: openai.OpenAI
) -> None:
    # Of replicas that cost the same, Kubernetes removes the newest.
    busy = max(cluster.pods(smollm2, NAMESPACE), key=ready_since)["metadata"]["name"]
    (idle,) = {pod["metadata"]["name"] for pod in cluster.pods(smollm2, NAMESPACE)} - {busy}
    prompt = prompt_for(cluster, client, busy)

    with ThreadPoolExecutor(1) as pool:
        # One alone: a second request would go to the other replica if this one were ready only since a second ago.
        answer = pool.submit(stream, client, prompt)

        def runs() -> bool:
            if answer.done():
                pytest.fail(f"the stream has ended: {answer.exception() or answer.result()}")
            return num_running(cluster, busy) == 1

        until(runs, f"a stream on {busy}")
        assert num_running(cluster, idle) == 0
        cluster.kubectl("scale", "llmd", smollm2, "-n", NAMESPACE, "--replicas=1")
        cluster.wait_replicas(smollm2, NAMESPACE, 1)
        end = answer.result()

    assert [pod["metadata"]["name"] for pod in cluster.pods(smollm2, NAMESPACE)] == [busy]
    assert end == "length"
    cluster.kubectl("scale", "llmd", smollm2, "-n", NAMESPACE, "--replicas=2")
    cluster.wait_replicas(smollm2, NAMESPACE, 2)
