"""The scales of LLMDeployments with `autoscaling`, as the watch has reported them."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

import msgspec

from engine_server.contract.cluster.api import Key
from engine_server.contract.cluster.failed_start import pause_seconds
from llm_operator.api.sections.autoscaling import Autoscaling
from llm_operator.api.status import FailedStart
from llm_operator.observed import Manifest, Observed
from llm_operator.status.waking import reported


class Scale(NamedTuple):
    """The replicas of an LLMDeployment, and the bounds and targets for them."""

    autoscaling: Autoscaling
    # Wanted and ready ones.
    replicas: int
    ready_replicas: int
    # A write with it fails if the object has changed.
    resource_version: str
    # Of the LLMDeployment: another one may take its name.
    uid: str = ""
    # The operator that manages it.
    operator: str = ""
    # No replica was ready within the deadline of the start that is being made.
    has_failed_start: bool = False
    # The time (of the epoch) before which a start that failed is not made again; 0 without one.
    paused_until: float = 0.0


@dataclass(slots=True)
class Scales:
    """The current scale of each LLMDeployment that the operator scales."""

    by_key: dict[Key, Scale] = field(default_factory=dict)

    def put(self, key: Key, manifest: Manifest | None) -> None:
        """Replace the scale of `key`, or remove it if the operator does not scale it."""
        scale = scale_of(manifest) if manifest is not None else None
        if scale is None:
            self.by_key.pop(key, None)
        else:
            self.by_key[key] = scale


def scale_of(manifest: Manifest) -> Scale | None:
    """Return the scale; None without a valid `autoscaling`, and for an object that is paused or being deleted."""
    metadata, spec = manifest["metadata"], manifest["spec"]
    given = spec.get("autoscaling")
    if given is None or "deletionTimestamp" in metadata or Observed(subject=manifest).is_paused:
        return None
    try:
        autoscaling = msgspec.convert(without_nulls(given), Autoscaling)
    except msgspec.ValidationError:
        # The status reports it.
        return None
    status = manifest.get("status", {})
    since, failure = status.get("startingSince") or "", reported(Observed(subject=manifest))
    failed_at = failure.time if failure else ""
    return Scale(
        autoscaling,
        spec.get("replicas", 1),
        status.get("readyReplicas", 0),
        metadata["resourceVersion"],
        metadata["uid"],
        status.get("operator", ""),
        has_failed_start=bool(since) and failed_at >= since,
        paused_until=pause_end(failure) if failure else 0.0,
    )


def pause_end(failure: FailedStart) -> float:
    return datetime.fromisoformat(failure.time).timestamp() + pause_seconds(failure.count)


def without_nulls(fields: Manifest) -> Manifest:
    return {name: value for name, value in fields.items() if value is not None}
