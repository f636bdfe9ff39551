"""The Deployment that runs the engines."""

import json
from typing import Any

import msgspec

from engine_server.contract import labels
from llm_operator.api.spec import LLMDeployment
from llm_operator.observed import Manifest, Observed, workload_key
from llm_operator.plan.ownership import child
from llm_operator.plan.pods import pod_template
from llm_operator.settings import Settings

# The time in which a replica must become ready: image, model and warm-up.
PROGRESS_DEADLINE_SECONDS = 1800

key = workload_key


def plan(deployment: LLMDeployment, observed: Observed, settings: Settings) -> Manifest:
    """Return the Deployment. Raises SpecError for a pod template that is refused."""
    template = template_in_force(deployment, observed) or pod_template(deployment, settings)
    surge = deployment.spec.rollout.strategy == "surge"
    spec = {
        "replicas": deployment.spec.replicas,
        "selector": {"matchLabels": labels.selector(deployment.name)},
        "strategy": {
            "type": "RollingUpdate",
            "rollingUpdate": {"maxSurge": int(surge), "maxUnavailable": int(not surge)},
        },
        "progressDeadlineSeconds": PROGRESS_DEADLINE_SECONDS,
        "revisionHistoryLimit": 3,
        "template": template,
    }
    manifest = child(deployment, key(deployment.name), settings, spec=spec)
    manifest["metadata"]["annotations"] = {
        labels.SPEC_HASH_ANNOTATION: deployment.spec_hash,
        labels.POD_TEMPLATE_ANNOTATION: json.dumps(template, sort_keys=True, separators=(",", ":")),
    }
    return manifest


def template_in_force(deployment: LLMDeployment, observed: Observed) -> dict[str, Any] | None:
    """Return the pod template that was made for this spec before, so that an operator's upgrade rolls no engine."""
    annotations = observed.workload(deployment.name).get("metadata", {}).get("annotations", {})
    recorded = annotations.get(labels.POD_TEMPLATE_ANNOTATION)
    if annotations.get(labels.SPEC_HASH_ANNOTATION) != deployment.spec_hash or not recorded:
        return None
    return msgspec.json.decode(recorded, type=dict[str, Any])
