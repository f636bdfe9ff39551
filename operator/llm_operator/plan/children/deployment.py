"""The Deployment that runs the engines, and the ConfigMap with the files that its pods mount."""

from collections.abc import Iterator
from dataclasses import replace

from engine_server.contract.cluster import api, labels
from llm_operator.api.spec import LLMDeployment
from llm_operator.api.spec_hash import spec_hash
from llm_operator.observed import Manifest, Observed, owners_of, workload_key
from llm_operator.plan.children import cache
from llm_operator.plan.ownership import child
from llm_operator.plan.pod import files, keys
from llm_operator.plan.pod.pods import pod_template
from llm_operator.plan.pod.template_record import TemplateRecord, last_record, read, template_in_force
from llm_operator.settings import Settings


def plan(deployment: LLMDeployment, observed: Observed, settings: Settings) -> Iterator[Manifest]:
    """Plan the Deployment after its files. Raises SpecError for a pod template that is refused.

    While a new model is downloaded into its cache, the Deployment keeps its template; without one there is none yet.
    """
    is_waiting = cache.fetched_into(deployment, observed) is not None
    record = last_record(deployment, observed) if is_waiting else template_in_force(deployment, observed)
    if record is None and is_waiting:
        return
    if record is None:
        template = pod_template(deployment, settings)
        record = TemplateRecord(template, spec_hash(deployment.spec), deployment.rolled_at)
    else:
        template = record.template
        if not settings.engine_keys:
            # At once, also during a download: the router has no key any more.
            template = keys.without_router_key(template, deployment.name)
        record = replace(record, template=template)
    yield from files.plan(deployment, record.template, settings)
    rollout = deployment.spec.rollout
    spec = {
        "replicas": deployment.spec.replicas,
        "selector": {"matchLabels": labels.selector(deployment.name)},
        "strategy": {
            "type": "RollingUpdate",
            "rollingUpdate": {"maxSurge": rollout.surge, "maxUnavailable": rollout.unavailable},
        },
        "progressDeadlineSeconds": rollout.progress_deadline_seconds,
        "revisionHistoryLimit": 3,
        "template": record.template,
    }
    manifest = child(deployment, workload_key(deployment.name), settings, spec=spec)
    manifest["metadata"]["annotations"] = record.annotations() | cache.annotations(deployment, observed)
    yield manifest


def plan_refused(observed: Observed, settings: Settings) -> Iterator[Manifest]:
    """Plan the Deployment of a spec that is refused: as it is, without the router's key if there is none any more."""
    name = observed.key.name
    existing = observed.workload(name)
    if settings.engine_keys or not existing or observed.subject["metadata"]["uid"] not in owners_of(existing):
        return
    metadata = existing["metadata"]
    annotations = metadata.get("annotations", {})
    record = read(annotations)
    if record is None or (template := keys.without_router_key(record.template, name)) == record.template:
        return
    own = {key: value for key, value in annotations.items() if key.startswith(f"{api.GROUP}/")}
    kept = {field: metadata[field] for field in ("name", "namespace", "labels", "ownerReferences")}
    workload = workload_key(name)
    yield {
        "apiVersion": workload.api_version,
        "kind": workload.kind,
        "metadata": kept | {"annotations": own | replace(record, template=template).annotations()},
        "spec": existing["spec"] | {"template": template},
    }
