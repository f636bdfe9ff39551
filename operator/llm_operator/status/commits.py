"""The commits of the hub's repository that ready replicas serve."""

from collections import Counter, defaultdict
from collections.abc import Iterator

from engine_server.contract.cluster.model_uri import parse
from engine_server.contract.cluster.reasons import Reason
from engine_server.contract.cluster.sources.hub import HubRepository
from llm_operator.api.spec import LLMDeploymentSpec
from llm_operator.api.status import ServedCommit
from llm_operator.observed import Observed, Problem, Replica
from llm_operator.status.adapters import ready_replicas
from llm_operator.status.rollout import is_of

# Commits in a message.
MOST_LISTED = 3


def served_commits(observed: Observed) -> tuple[ServedCommit, ...] | None:
    """Return each commit with the replicas that serve it; None if no replica is known to serve any."""
    pods = defaultdict(list)
    for pod, commit in known(observed).items():
        pods[commit].append(pod)
    return tuple(ServedCommit(commit, tuple(sorted(pods[commit]))) for commit in sorted(pods)) or None


def replicas_to_ask(spec: LLMDeploymentSpec | None, observed: Observed) -> tuple[Replica, ...]:
    """Return the ready replicas whose commit has not been reported: none of a model of no hub."""
    if spec is not None and not isinstance(parse(spec.model.uri), HubRepository):
        return ()
    reported = before(observed)
    return tuple(replica for replica in ready_replicas(observed) if replica.pod not in reported)


def mixed_revisions(observed: Observed) -> Problem | None:
    """Return the problem that replicas of one template serve different commits, if they do."""
    commits = known(observed)
    for replica_set in observed.replica_sets:
        pods = {pod["metadata"]["name"] for pod in observed.pods if is_of(pod, replica_set)}
        counts = Counter(commits[name] for name in commits.keys() & pods)
        if len(counts) > 1:
            listed = sorted(counts.items(), key=lambda share: (-share[1], share[0]))
            shares = ", ".join(f"{commit} on {count}" for commit, count in listed[:MOST_LISTED])
            return Problem(
                Reason.MIXED_REVISIONS,
                f"replicas serve different commits of the model: {shares}; pin one in model.uri: @{listed[0][0]}",
            )
    return None


def known(observed: Observed) -> dict[str, str]:
    """Return the commits of ready replicas by pod: as they answer, else as reported before."""
    reported = before(observed)
    pods = (replica.pod for replica in ready_replicas(observed))
    found = {pod: observed.commits.get(pod) or reported.get(pod, "") for pod in pods}
    return {pod: commit for pod, commit in found.items() if commit}


def before(observed: Observed) -> dict[str, str]:
    return {pod: commit for commit, pods in reported_commits(observed) for pod in pods}


def reported_commits(observed: Observed) -> Iterator[tuple[str, list[str]]]:
    for entry in observed.reported.get("commits", ()):
        yield entry["commit"], entry.get("pods", [])
