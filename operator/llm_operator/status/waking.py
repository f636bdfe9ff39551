"""Starts of autoscaled replicas: since when one is waited for, and the one that was given up."""

import json
from datetime import datetime, timedelta

import msgspec

from llm_operator.api.spec import LLMDeploymentSpec
from llm_operator.api.spec_hash import digest
from llm_operator.api.status import FailedStart, Status
from llm_operator.observed import Observed, Problem, revision, timestamp
from llm_operator.status.messages import presentable
from llm_operator.status.problems import is_fetching


def starting_since(spec: LLMDeploymentSpec | None, ready: int, observed: Observed) -> str | None:
    """Return the time since which more than the minimum is wanted and no replica is ready; None if that is not so.

    A download, also in a pod, is no start, and a deployment that is paused is not scaled. Another pod template begins
    another start.
    """
    if spec is None or spec.autoscaling is None or observed.is_paused or observed.fetch is not None:
        return None
    if ready or spec.replicas <= spec.autoscaling.min or is_fetching(observed.pods):
        return None
    newest = max(observed.replica_sets, key=revision, default={})
    templated: str = newest.get("metadata", {}).get("creationTimestamp", "")
    return max(str(observed.reported.get("startingSince") or timestamp(observed.now)), templated)


def give_up_after(spec: LLMDeploymentSpec | None, status: Status, observed: Observed) -> float | None:
    """Return the seconds after which the start that is being made is given up; None if there is none to give up."""
    since, failure = status.starting_since, status.failed_start
    if spec is None or since is None or (failure is not None and failure.time >= since):
        return None
    return seconds_left(spec, since, observed)


def seconds_left(spec: LLMDeploymentSpec, since: str, observed: Observed) -> float:
    """Return the seconds until a start is given up; none are left of one that is."""
    deadline = datetime.fromisoformat(since) + timedelta(seconds=spec.rollout.progress_deadline_seconds)
    return max(0.0, (deadline - observed.now).total_seconds())


def failed_start(
    spec: LLMDeploymentSpec | None, since: str | None, ready: int, cause: Problem, observed: Observed
) -> FailedStart | None:
    """Return the start that was given up last, for `cause`; None after a success, or for another spec."""
    if spec is None or spec.autoscaling is None or ready:
        return None
    last = reported(observed)
    own_hash = spec_hash_of(observed)
    if last is not None and last.spec_hash != own_hash:
        last = None
    if since is None or (last is not None and last.time >= since) or seconds_left(spec, since, observed):
        return last
    count = 1 if last is None else last.count + 1
    return FailedStart(timestamp(observed.now), cause.reason, presentable(cause.message), count, own_hash)


def reported(observed: Observed) -> FailedStart | None:
    try:
        return msgspec.convert(observed.reported.get("failedStart"), FailedStart | None)
    except msgspec.ValidationError:
        return None


def spec_hash_of(observed: Observed) -> str:
    """Return a hash of the spec without the number of replicas, which each start and stop changes."""
    spec = {name: value for name, value in observed.subject.get("spec", {}).items() if name != "replicas"}
    return digest(json.dumps(spec, sort_keys=True).encode())
