"""The state of a download, read from the API for as long as it runs."""

from engine_server.contract.cluster.labels import MODEL_CACHE_LABEL, UNUSABLE_MODEL_ANNOTATION
from llm_operator.api.model_cache import ModelCache
from llm_operator.control.cluster import Cluster
from llm_operator.control.fetch_poller import FetchProgress
from llm_operator.control.warnings import Subject, warnings_about
from llm_operator.kinds import PODS, child_path
from llm_operator.observed import Fetch, Manifest, claim_key, fetch_key
from llm_operator.status.problems import unusable_model

# A Job has one pod at a time; evicted ones stay around, and anybody in the namespace may give a pod the label.
MOST_PODS = 20
# The newest pods, whose Warnings are read.
MOST_SUBJECTS = 3


async def observe_fetch(
    cluster: Cluster, namespace: str, cache: ModelCache, progress: FetchProgress | None
) -> Fetch:
    """Return the pods, with the progress that they reported last; if none, the Warnings about them and the claim.

    Those about a claim that is bound by now, or that had the same name before, are left out.
    """
    selector = f"{MODEL_CACHE_LABEL}={cache.name}"
    page = await cluster.call("GET", PODS.path(namespace), labelSelector=selector, limit=str(MOST_PODS))
    pods: list[Manifest] = sorted(page["items"], key=lambda pod: str(pod["metadata"]["creationTimestamp"]))
    if progress is not None:
        return Fetch(tuple(pods), progress.done, progress.total)
    claim = await cluster.find(child_path(namespace, claim_key(cache.claim)))
    newest = pods[-MOST_SUBJECTS:]
    subjects = (
        newest if claim is None or claim.get("status", {}).get("phase") == "Bound" else [claim, *newest]
    )
    return Fetch(tuple(pods), warnings=await warnings_about(cluster, namespace, map(Subject.of, subjects)))


async def stop_if_unusable(cluster: Cluster, namespace: str, cache: ModelCache, fetch: Fetch) -> None:
    """Suspend the Job, and record the reason on it, if a pod found that no repetition makes the model usable."""
    if line := unusable_model(fetch.pods):
        change = {"metadata": {"annotations": {UNUSABLE_MODEL_ANNOTATION: line}}, "spec": {"suspend": True}}
        path = child_path(namespace, fetch_key(cache.name))
        await cluster.patch(path, change)


def addresses(fetch: Fetch) -> tuple[str, ...]:
    """Return the addresses of the pods that run."""
    statuses = [pod.get("status", {}) for pod in fetch.pods]
    return tuple(
        status["podIP"] for status in statuses if status.get("phase") == "Running" and status.get("podIP")
    )
