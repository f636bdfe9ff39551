"""The conditions of an LLMDeployment: a row each.

What is reported, what `kubectl explain` says, which conditions are Warnings, and the dashboard's query follow from it.
"""

from collections.abc import Callable
from typing import NamedTuple

from llm_operator.status.adapters import adapters_ready
from llm_operator.status.verdicts import (
    Evidence,
    Verdict,
    degraded,
    name_taken,
    progressing,
    ready,
    reconciling,
    stalled,
)


class Row(NamedTuple):
    """A condition."""

    type: str
    # None leaves it out.
    verdict: Callable[[Evidence], Verdict | None]
    # What True says.
    meaning: str
    # True is a failure: Events about it are Warnings.
    is_bad: bool = False


CONDITIONS = (
    Row("Ready", ready, "requests are answered: a replica is ready, or the request starts one"),
    Row(
        "Progressing", progressing, "replicas are started or replaced, or their template waits for a download"
    ),
    Row("Degraded", degraded, "something failed, even if other replicas answer", is_bad=True),
    Row("Reconciling", reconciling, "replicas lack the template of the present spec"),
    Row("Stalled", stalled, "somebody must change something, or a rollout is past its deadline", is_bad=True),
    Row("ModelCached", lambda evidence: evidence.cached, "with a model cache: the model is on its volume"),
    Row(
        "AdaptersReady",
        lambda evidence: adapters_ready(evidence.spec, evidence.observed),
        "with adapters: every ready replica serves every adapter",
    ),
    Row(
        "NameTaken",
        lambda evidence: name_taken(evidence.observed),
        "an older LLMDeployment holds a served name",
        is_bad=True,
    ),
)
BAD = frozenset(row.type for row in CONDITIONS if row.is_bad)


def explanation() -> str:
    """Return what the types mean, for `kubectl explain`."""
    return " ".join(f"{row.type}: {row.meaning}." for row in CONDITIONS)
