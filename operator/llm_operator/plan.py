"""The operator's heart: from an LLMDeployment and what there is, to what there should be. No I/O."""

import json
from dataclasses import dataclass
from typing import Any

import msgspec

from engine_server.contract import api, labels
from llm_operator.observed import Manifest, Observed
from llm_operator.pods import pod_template
from llm_operator.settings import Settings
from llm_operator.spec import LLMDeployment
from llm_operator.status import Status, status

PROGRESS_DEADLINE_SECONDS = 1800  # a replica's whole start: image, model, warm up


@dataclass(frozen=True, slots=True)
class Plan:
    """`children` as they are applied, and the status to report."""

    children: tuple[Manifest, ...]
    status: Status

    def child(self, kind: str) -> Manifest:
        return next(child for child in self.children if child["kind"] == kind)


def plan(deployment: LLMDeployment, observed: Observed, settings: Settings) -> Plan:
    """Raises SpecError where the spec asks for what cannot be."""
    template = template_in_force(deployment, observed) or pod_template(deployment, settings)
    return Plan(
        children=(
            child(deployment, settings, "v1", "ServiceAccount", automountServiceAccountToken=False),
            service(deployment, settings),
            workload(deployment, template, settings),
        ),
        status=status(deployment.name, deployment.metadata.generation, deployment.spec.replicas, observed),
    )


def template_in_force(deployment: LLMDeployment, observed: Observed) -> dict[str, Any] | None:
    """The pod template chosen for this very spec before: an upgrade of the operator rolls no engine."""
    annotations = observed.workload.get("metadata", {}).get("annotations", {})
    recorded = annotations.get(labels.POD_TEMPLATE_ANNOTATION)
    if annotations.get(labels.SPEC_HASH_ANNOTATION) != deployment.spec_hash or not recorded:
        return None
    return msgspec.json.decode(recorded, type=dict[str, Any])


def workload(deployment: LLMDeployment, template: dict[str, Any], settings: Settings) -> Manifest:
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
    manifest = child(deployment, settings, "apps/v1", "Deployment", spec=spec)
    manifest["metadata"]["annotations"] = {
        labels.SPEC_HASH_ANNOTATION: deployment.spec_hash,
        labels.POD_TEMPLATE_ANNOTATION: json.dumps(template, sort_keys=True, separators=(",", ":")),
    }
    return manifest


def service(deployment: LLMDeployment, settings: Settings) -> Manifest:
    port = {"name": labels.HTTP_PORT_NAME, "port": labels.ENGINE_PORT, "targetPort": labels.HTTP_PORT_NAME}
    spec = {
        "type": "ClusterIP",
        "selector": labels.selector(deployment.name),
        "ports": [{**port, "protocol": "TCP"}],
    }
    return child(deployment, settings, "v1", "Service", spec=spec)


def child(
    deployment: LLMDeployment, settings: Settings, api_version: str, kind: str, **content: object
) -> Manifest:
    owner = {
        "apiVersion": api.API_VERSION,
        "kind": api.KIND,
        "name": deployment.name,
        "uid": deployment.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
    metadata = {
        "name": labels.child_name(deployment.name),
        "namespace": deployment.namespace,
        "labels": labels.child_labels(deployment.name, settings.version),
        "ownerReferences": [owner],
    }
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **content}
