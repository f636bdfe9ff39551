"""The adapters that ready replicas serve, and the reasons of those that they do not."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from engine_server.contract.adapters import AdapterState, WantedAdapter
from engine_server.contract.labels import ENGINE_CONTAINER
from llm_operator.api.status import ServedAdapter
from llm_operator.observed import Observed, Problem, Replica
from llm_operator.status.conditions import Verdict
from llm_operator.status.messages import presentable
from llm_operator.status.problems import condition, statuses


class Standing(NamedTuple):
    """One adapter in one ready replica."""

    pod: str
    # The state of the wanted content, which may be served in an older one meanwhile; None: it is not known.
    state: AdapterState | None
    # Why it is not served.
    problem: Problem | None

    @property
    def is_ready(self) -> bool:
        return self.state is not None and self.state.state == "ready"

    @property
    def hash(self) -> str | None:
        return self.state.hash if self.state else None


def ready_replicas(observed: Observed) -> tuple[Replica, ...]:
    """Return the replicas that are ready and not being deleted."""
    return tuple(_ready_replicas(observed))


def _ready_replicas(observed: Observed) -> Iterator[Replica]:
    for pod in observed.pods:
        address = pod.get("status", {}).get("podIP")
        is_ready = condition(pod, "Ready").get("status") == "True"
        engine = next((entry for entry in statuses(pod) if entry["name"] == ENGINE_CONTAINER), {})
        started_at = engine.get("state", {}).get("running", {}).get("startedAt")
        if address and is_ready and started_at and "deletionTimestamp" not in pod["metadata"]:
            yield Replica(pod["metadata"]["name"], started_at, address)


def served_adapters(observed: Observed) -> tuple[ServedAdapter, ...] | None:
    """Return the adapters with the pods that serve each; None if engines serve none."""
    wanted = observed.adapters_in_force
    return None if wanted is None else tuple(served(adapter, observed) for adapter in wanted.adapters)


def served(adapter: WantedAdapter, observed: Observed) -> ServedAdapter:
    found = standings(adapter, observed)
    hashes = [each.hash for each in sorted(found, key=lambda each: not each.is_ready) if each.hash]
    problems = [each.problem for each in found if each.problem]
    return ServedAdapter(
        name=adapter.name,
        hash=hashes[0] if hashes else None,
        pods=tuple(each.pod for each in found if each.hash),
        error=presentable(problems[0].message) if problems else None,
    )


def standings(adapter: WantedAdapter, observed: Observed) -> list[Standing]:
    """Return the adapter's standing in each ready replica."""
    return [standing(adapter, replica, observed) for replica in ready_replicas(observed)]


def standing(adapter: WantedAdapter, replica: Replica, observed: Observed) -> Standing:
    answer = observed.pod_adapters.get(replica.pod)
    if answer is None or answer.replica != replica:
        return Standing(replica.pod, None, None)
    state = next((state for state in answer.states if state.name == adapter.name), None)
    if state is not None and state.uri != adapter.uri:
        # The answer is about an earlier URI.
        state = AdapterState(adapter.name, adapter.uri, "loading", state.hash)
    if answer.problem:
        return Standing(replica.pod, state, Problem("EngineUnreachable", f"{replica.pod}: {answer.problem}"))
    if state is not None and state.state == "failed":
        return Standing(replica.pod, state, Problem("AdapterFailed", state.error or "it cannot be loaded"))
    return Standing(replica.pod, state, None)


def adapters_ready(observed: Observed) -> Verdict | None:
    """True means that every ready replica serves every adapter; None leaves the condition out."""
    wanted = observed.adapters_in_force
    if wanted is None:
        return None
    total = len(ready_replicas(observed))
    if not total:
        return Verdict(False, "NoReadyReplica", "adapters are served once a replica is ready")
    found = {adapter.name: standings(adapter, observed) for adapter in wanted.adapters}
    for name, listed in found.items():
        if problem := next((each.problem for each in listed if each.problem), None):
            return Verdict(False, problem.reason, f"the adapter {name}: {problem.message}{share(listed)}")
    for name, listed in found.items():
        if not all(each.is_ready for each in listed):
            return Verdict(False, "LoadingAdapters", f"the adapter {name} is being loaded{share(listed)}")
    return Verdict(
        True, "AdaptersServed", f"{len(found)} adapters, each served by {total} of {total} replicas"
    )


def share(listed: Sequence[Standing]) -> str:
    """Return the replicas that serve an adapter, where it is some of them."""
    ready = sum(each.is_ready for each in listed)
    return f"; {ready} of {len(listed)} replicas serve it" if ready else ""
