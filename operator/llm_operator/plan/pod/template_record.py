"""The record of the pod template in force, so that replicas are replaced only when a field that they depend on changes.

The operator renders the template of a spec once. Annotations of the Deployment keep it, with the spec's hash and the
record's own hash, and Kubernetes copies them to the ReplicaSets. An upgraded operator keeps the recorded template, and
a spec that returns to an earlier form finds its template on a retained ReplicaSet.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from engine_server.contract.cluster import labels
from llm_operator.api.model_cache import model_cache
from llm_operator.api.schema import SpecError
from llm_operator.api.sections.cache import Cache
from llm_operator.api.sections.model import Model
from llm_operator.api.spec import LLMDeployment
from llm_operator.api.spec_hash import digest, equal_hashes, spec_hash
from llm_operator.observed import Manifest, Observed, owners_of, revision
from llm_operator.plan.pod.template import PodTemplate, typed

# The API server allows 256 KiB of annotations; the rest is for those that Kubernetes adds to a ReplicaSet.
MOST_BYTES = 248 * 1024


@dataclass(frozen=True, slots=True)
class TemplateRecord:
    """A pod template, and the spec that it was rendered for."""

    template: dict[str, Any]
    spec_hash: str
    # The request to take the operator's current template that it fulfilled; empty without one.
    rolled_at: str = ""

    def annotations(self) -> dict[str, str]:
        """Return the record as annotations. Raises SpecError if it is too large for them."""
        template = text_of(self.template)
        annotations = {
            labels.SPEC_HASH_ANNOTATION: self.spec_hash,
            labels.POD_TEMPLATE_ANNOTATION: template,
            labels.RECORD_HASH_ANNOTATION: record_hash(template, self.spec_hash, self.rolled_at),
        }
        if self.rolled_at:
            annotations[labels.ROLLED_AT_ANNOTATION] = self.rolled_at
        size = sum(len(name) + len(value.encode()) for name, value in annotations.items())
        if size > MOST_BYTES:
            problem = f"the pod template takes {size} bytes as JSON; at most {MOST_BYTES} can be recorded"
            raise SpecError("spec", f"{problem}: move long values into a ConfigMap")
        return annotations


def text_of(template: Manifest) -> str:
    """Return a template as records have it."""
    return json.dumps(template, sort_keys=True, separators=(",", ":"))


def template_in_force(deployment: LLMDeployment, observed: Observed) -> TemplateRecord | None:
    """Return the record of the template that was rendered for this spec before, or None.

    A record that is broken or was modified is replaced by a retained ReplicaSet's copy, or by the live template.
    """
    for annotations in recorded_annotations(deployment, observed):
        record = read(annotations)
        if record is not None and suits(record, deployment):
            return TemplateRecord(record.template, spec_hash(deployment.spec), record.rolled_at)
    return live(deployment, observed)


def last_record(deployment: LLMDeployment, observed: Observed) -> TemplateRecord | None:
    """Return the newest readable record, whatever spec it was made for; without one, the Deployment's own template."""
    workload = observed.workload(deployment.name)
    records = map(read, recorded_annotations(deployment, observed))
    last = next((record for record in records if record is not None), None)
    return last or (TemplateRecord(workload["spec"]["template"], "") if workload else None)


def recorded_annotations(deployment: LLMDeployment, observed: Observed) -> Iterator[dict[str, str]]:
    """Yield the annotations of the Deployment, then of its ReplicaSets from the newest revision to the oldest."""
    workload = observed.workload(deployment.name)
    if not workload:
        return
    yield workload["metadata"].get("annotations", {})
    uid = workload["metadata"].get("uid")
    for replica_set in sorted(observed.replica_sets, key=revision, reverse=True):
        if uid in owners_of(replica_set):
            yield replica_set["metadata"].get("annotations", {})


def read(annotations: dict[str, str]) -> TemplateRecord | None:
    """Return the record in annotations; None if there is none, or if it is broken or was modified."""
    template = annotations.get(labels.POD_TEMPLATE_ANNOTATION, "")
    made_for = annotations.get(labels.SPEC_HASH_ANNOTATION, "")
    rolled_at = annotations.get(labels.ROLLED_AT_ANNOTATION, "")
    given = annotations.get(labels.RECORD_HASH_ANNOTATION)
    if given != record_hash(template, made_for, rolled_at):
        return None
    try:
        return TemplateRecord(msgspec.json.decode(template, type=dict[str, Any]), made_for, rolled_at)
    except msgspec.MsgspecError:
        return None


def record_hash(template: str, made_for: str, rolled_at: str) -> str:
    return digest("\n".join((made_for, rolled_at, template)).encode())


def suits(record: TemplateRecord, deployment: LLMDeployment) -> bool:
    """Return True for the record of a template that was rendered for this spec, and may still be used."""
    template = typed(record.template)
    is_adopted = deployment.rolled_at in ("", record.rolled_at)
    return (
        record.spec_hash in equal_hashes(deployment.spec)
        and is_adopted
        and has_cache_of(template, deployment.spec.model)
    )


def has_cache_of(template: PodTemplate, model: Model) -> bool:
    """Return True if pods have the cache of a model exactly if it has one. The hash of a spec lacks one of a size."""
    if model_cache(model):
        return not template.is_fetching
    former = model_cache(msgspec.structs.replace(model, cache=Cache(size="1")))
    return former is None or former.claim != template.model_claim


def live(deployment: LLMDeployment, observed: Observed) -> TemplateRecord | None:
    """Return a record of the Deployment's own template, if it was applied for this spec and nobody has modified it."""
    workload = observed.workload(deployment.name)
    annotations = workload.get("metadata", {}).get("annotations", {})
    rolled_at = annotations.get(labels.ROLLED_AT_ANNOTATION, "")
    made_for = annotations.get(labels.SPEC_HASH_ANNOTATION, "")
    if not is_untouched(workload):
        return None
    record = TemplateRecord(workload["spec"]["template"], made_for, rolled_at)
    if not suits(record, deployment):
        return None
    return TemplateRecord(record.template, spec_hash(deployment.spec), rolled_at)


def is_untouched(workload: Manifest) -> bool:
    """Return True if the API server attributes the spec of the pods to nobody but us."""
    managed = workload.get("metadata", {}).get("managedFields", ())
    owners = {
        entry["manager"]
        for entry in managed
        if "f:spec" in entry.get("fieldsV1", {}).get("f:spec", {}).get("f:template", {})
    }
    return owners == {labels.FIELD_MANAGER}
