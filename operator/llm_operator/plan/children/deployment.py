"""The Deployment that runs the engines, and the ConfigMap with the files that its pods mount."""

from collections.abc import Iterator
from dataclasses import replace

from engine_server.contract import labels
from llm_operator.api.spec import LLMDeployment
from llm_operator.api.spec_hash import spec_hash
from llm_operator.observed import Manifest, Observed, workload_key
from llm_operator.plan.children import cache
from llm_operator.plan.ownership import child
from llm_operator.plan.pod import files, keys
from llm_operator.plan.pod.pods import pod_template
from llm_operator.plan.pod.template_record import TemplateRecord, last_record, template_in_force
from llm_operator.settings import Settings


def plan(deployment: LLMDeployment, observed: Observed, settings: Settings) -> Iterator[Manifest]:
    """Plan the Deployment after its files. Raises SpecError for a pod template that is refused.

    While a new model is downloaded into its cache, the Deployment keeps its template; without one there is none yet.
    """
    is_waiting = cache.fetched_into(deployment, observed) is not None
    record = (
        last_record(deployment, observed) if is_waiting else template_in_force(deployment, observed, settings)
    )
    if record is None and is_waiting:
        return
    if record is None or keys.needs_removal(record.template, settings):
        template = pod_template(deployment, settings)
        record = TemplateRecord(template, spec_hash(deployment.spec), deployment.rolled_at)
    elif not is_waiting:
        record = replace(record, template=files.with_present_name(record.template, deployment, observed))
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
