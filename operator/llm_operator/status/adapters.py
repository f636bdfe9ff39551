"""The adapters that ready replicas serve, and the reasons of those that they do not."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from engine_server.contract.cluster.adapters import AdapterState, WantedAdapter
from engine_server.contract.cluster.reasons import Reason
from llm_operator.api.spec import LLMDeploymentSpec
from llm_operator.api.status import ServedAdapter
from llm_operator.observed import Observed, PodAdapters, Problem, Replica
from llm_operator.status.messages import presentable
from llm_operator.status.problems import condition
from llm_operator.status.start import started_at
from llm_operator.status.verdicts import Verdict


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
        started = started_at(pod)
        if address and is_ready and started and "deletionTimestamp" not in pod["metadata"]:
            yield Replica(pod["metadata"]["name"], started, address)


def served_adapters(spec: LLMDeploymentSpec | None, observed: Observed) -> tuple[ServedAdapter, ...] | None:
    """Return the adapters with the pods that serve each; None if engines serve none."""
    wanted = observed.adapters_in_force
    if wanted is None:
        return None
    return tuple(served(each.name, standings(each, spec, observed)) for each in wanted.adapters)


def served(name: str, listed: Sequence[Standing]) -> ServedAdapter:
    hashes = [each.hash for each in sorted(listed, key=lambda each: not each.is_ready) if each.hash]
    problems = [each.problem for each in listed if each.problem]
    return ServedAdapter(
        name=name,
        hash=hashes[0] if hashes else None,
        pods=tuple(each.pod for each in listed if each.hash),
        error=presentable(problems[0].message) if problems else None,
    )


def adapters_ready(spec: LLMDeploymentSpec | None, observed: Observed) -> Verdict | None:
    """True means that every ready replica serves every adapter; None leaves the condition out."""
    wanted = observed.adapters_in_force
    if wanted is None:
        return None
    total = len(ready_replicas(observed))
    if not total:
        return Verdict(False, Reason.NO_READY_REPLICA, "adapters are served once a replica is ready")
    found = {each.name: standings(each, spec, observed) for each in wanted.adapters}
    for name, listed in found.items():
        if problem := next((each.problem for each in listed if each.problem), None):
            return Verdict(False, problem.reason, f"the adapter {name}: {problem.message}{share(listed)}")
    for name, listed in found.items():
        if not all(each.is_ready for each in listed):
            return Verdict(
                False, Reason.LOADING_ADAPTERS, f"the adapter {name} is being loaded{share(listed)}"
            )
    names = ", ".join(found) or "no adapters"
    return Verdict(True, Reason.ADAPTERS_SERVED, f"{total} of {total} replicas serve {names}")


def share(listed: Sequence[Standing]) -> str:
    """Return the number of replicas that serve an adapter, where some do."""
    ready = sum(each.is_ready for each in listed)
    return f"; {ready} of {len(listed)} replicas serve it" if ready else ""


def standings(adapter: WantedAdapter, spec: LLMDeploymentSpec | None, observed: Observed) -> list[Standing]:
    """Return the adapter's standing in each ready replica. Messages have the URI as the spec has it."""
    given = next(
        (each.uri for each in (spec and spec.adapters) or () if each.name == adapter.name), adapter.uri
    )
    found = []
    for replica in ready_replicas(observed):
        answer = observed.pod_adapters.get(replica.pod)
        is_current = answer is not None and answer.replica == replica
        state = state_in(answer, adapter) if answer is not None and is_current else None
        problem = problem_in(answer, state) if answer is not None and is_current else None
        if problem is not None:
            problem = problem._replace(message=problem.message.replace(adapter.uri, given))
        found.append(Standing(replica.pod, state, problem))
    return found


def state_in(answer: PodAdapters, adapter: WantedAdapter) -> AdapterState | None:
    """Return the state of an adapter in an answer, which may be about an earlier URI."""
    state = next((state for state in answer.states if state.name == adapter.name), None)
    if state is None or state.uri == adapter.uri:
        return state
    return AdapterState(adapter.name, adapter.uri, "loading", state.hash)


def problem_in(answer: PodAdapters, state: AdapterState | None) -> Problem | None:
    if answer.problem:
        return Problem(Reason.ENGINE_UNREACHABLE, f"{answer.replica.pod}: {answer.problem}")
    if state is not None and state.state == "failed":
        return Problem(Reason.ADAPTER_FAILED, state.error or "it cannot be loaded")
    return None
