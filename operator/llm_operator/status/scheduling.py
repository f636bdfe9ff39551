"""The reasons why no node takes a pod, from the scheduler's message and the pod's own spec.

Kubernetes 1.30 to 1.35: `0/5 nodes are available: 2 node(s) had untolerated taint {KEY: VALUE}, 3 Insufficient
nvidia.com/gpu. preemption: ...`. A message in other words is reported as it is, under the reason Unschedulable.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from engine_server.contract.cluster.reasons import Reason
from llm_operator.observed import Problem

SUMMARY = re.compile(
    r"^\d+/(?P<nodes>\d+) nodes are available: (?P<causes>.*?)"
    r"(?:\.? (?:no new claims to deallocate, )?preemption: .*)?\.?$"
)
CAUSE = re.compile(r"(\d+) (.*?)(?:, (?=\d+ )|$)")
TAINT = re.compile(r"node\(s\) had untolerated taint(?:\(s\)|s)?(?: \{(.*)\})?")
SELECTOR = re.compile(r"node\(s\) didn't match Pod's node affinity/selector")
INSUFFICIENT = re.compile(r"(?:Insufficient|node\(s\) didn't have enough) (\S+)")
AFFINITY = re.compile(
    r"node\(s\) (?:didn't match PersistentVolume's node affinity|had volume node affinity conflict)"
)
ONE_POD = "ReadWriteOncePod"
# Of a volume, in a message.
FOR_OTHER_NODES = "which is for other nodes"
UNBOUND = re.compile(
    r"unbound immediate PersistentVolumeClaims|available persistent volumes to bind|binding volumes|storageclass"
)


def scheduling_problem(message: str, pod_spec: Mapping[str, Any]) -> Problem:
    """Return the problem of a pod that no node takes. The reason is that of the most nodes."""
    if UNBOUND.search(message):
        return Problem(Reason.CLAIM_PENDING, unbound_claims(message, pod_spec))
    summary = SUMMARY.match(message)
    causes = CAUSE.findall(summary["causes"]) if summary else []
    if summary is None or not causes:
        return Problem(Reason.UNSCHEDULABLE, message)
    counted = sorted(((int(count), *explain(cause, pod_spec)) for count, cause in causes), key=priority)
    listed = "; ".join(f"{count} {text}" for count, _, text in counted)
    return Problem(counted[0][1], f"none of {summary['nodes']} nodes takes the pod: {listed}")


def explain(cause: str, pod_spec: Mapping[str, Any]) -> tuple[str, str]:
    """Return the reason, and the words that follow a number of nodes."""
    if taint := TAINT.fullmatch(cause):
        return Reason.UNTOLERATED_TAINT, f"with {untolerated(taint[1], pod_spec)}"
    if SELECTOR.fullmatch(cause):
        return Reason.NODE_SELECTOR_MISMATCH, f"without {wanted_labels(pod_spec)}"
    if resource := INSUFFICIENT.fullmatch(cause):
        return Reason.UNSCHEDULABLE, f"with too little free {resource[1]}"
    if AFFINITY.fullmatch(cause):
        return Reason.UNSCHEDULABLE, f"without {claimed_volume(pod_spec)}, {FOR_OTHER_NODES}"
    if ONE_POD in cause:
        return Reason.VOLUME_IN_USE, f"while another pod has {claimed_volume(pod_spec)}, which is {ONE_POD}"
    return Reason.UNSCHEDULABLE, cause


def priority(counted: tuple[int, str, str]) -> tuple[int, int]:
    """Order causes by the number of nodes; of equal ones, a taint is last, since control planes have one."""
    order: tuple[str, ...] = (
        Reason.NODE_SELECTOR_MISMATCH,
        Reason.VOLUME_IN_USE,
        Reason.UNSCHEDULABLE,
        Reason.UNTOLERATED_TAINT,
    )
    return -counted[0], order.index(counted[1])


def wanted_labels(pod_spec: Mapping[str, Any]) -> str:
    """Return the labels that a pod asks of nodes."""
    selector = pod_spec.get("nodeSelector") or {}
    labels = [f"{label}={value}" for label, value in sorted(selector.items())]
    if pod_spec.get("affinity", {}).get("nodeAffinity"):
        labels.append("what its node affinity requires")
    noun = "the label" if len(labels) == 1 and selector else "the labels"
    return f"{noun} {', '.join(labels)}" if labels else "the labels that the pod requires"


def untolerated(taint: str | None, pod_spec: Mapping[str, Any]) -> str:
    """Return the taint, or, as Kubernetes 1.34 and later do not name it, those that the pod tolerates."""
    if taint:
        return f"the taint {taint.removesuffix(': ')}, which the pod does not tolerate (podTemplate.spec.tolerations)"
    tolerated = ", ".join(str(entry.get("key", "all")) for entry in pod_spec.get("tolerations") or ())
    return f"a taint that the pod does not tolerate (podTemplate.spec.tolerations; it tolerates {tolerated or 'none'})"


def unbound_claims(message: str, pod_spec: Mapping[str, Any]) -> str:
    claims = named(
        "the PersistentVolumeClaim", "the PersistentVolumeClaims", claims_of(pod_spec) or ["of the pod"]
    )
    # The scheduler's summary repeats it for the nodes; other messages have the cause.
    cause = "" if "unbound immediate" in message else f": {message}"
    return f"no volume is bound to {claims} yet{cause}"


def claims_of(pod_spec: Mapping[str, Any]) -> list[str]:
    """Return the names of the claims among the volumes of a pod."""
    claims = [volume.get("persistentVolumeClaim") for volume in pod_spec.get("volumes") or ()]
    return [claim["claimName"] for claim in claims if claim]


def claimed_volume(pod_spec: Mapping[str, Any]) -> str:
    """Return the words for a volume of a pod, of which a message has no claim: that of its claim, or of one of them."""
    claims = claims_of(pod_spec)
    if not claims:
        return "a volume of the pod"
    return named("the volume of the claim", "one of the volumes of the claims", claims)


def named(one: str, several: str, names: Sequence[str]) -> str:
    """Return a noun in the number of its names, with them."""
    return f"{one if len(names) == 1 else several} {', '.join(names)}"
