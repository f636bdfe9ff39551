"""Labels, annotations, and the names of children, containers and ports in a cluster."""

from engine_server.contract.cluster.api import GROUP

# Carried by every child; EndpointSlices inherit it from their Service. Empty on a child that several share.
LLMDEPLOYMENT_LABEL = f"{GROUP}/llmdeployment"
# Kubernetes' own, on an EndpointSlice: the Service that it is of.
SERVICE_NAME_LABEL = "kubernetes.io/service-name"
# The version of the operator that applied a child; of one that several share, the version that created it.
VERSION_LABEL = "app.kubernetes.io/version"
SPEC_HASH_ANNOTATION = f"{GROUP}/spec-hash"
POD_TEMPLATE_ANNOTATION = f"{GROUP}/pod-template"
# The hash of a child as it was applied last.
APPLIED_ANNOTATION = f"{GROUP}/applied"
RECORD_HASH_ANNOTATION = f"{GROUP}/record-hash"
# On an LLMDeployment: a request to take the operator's current image and pod template, by any new value.
ROLLED_AT_ANNOTATION = f"{GROUP}/rolled-at"

# On a model cache's claim, its Job and the Job's pods: the name of the cache.
MODEL_CACHE_LABEL = f"{GROUP}/model-cache"
# On a cache's Job: the UID of the LLMDeployment whose spec it follows, and the hash of what that spec asks of it.
FETCH_OWNER_ANNOTATION = f"{GROUP}/fetch-owner"
FETCH_SPEC_ANNOTATION = f"{GROUP}/fetch-spec"
# On a cache's Job that is not repeated: the reason why no repetition makes the model usable.
UNUSABLE_MODEL_ANNOTATION = f"{GROUP}/unusable-model"
# On a Deployment, and on a claim that was created for a cache: the cache, and the claim's UID, whose model is complete.
CACHED_MODEL_ANNOTATION = f"{GROUP}/cached-model"
# On a Deployment: the time at which that model's download ended.
CACHED_AT_ANNOTATION = f"{GROUP}/cached-at"
# On a Deployment: the record hash of the template whose engines lost the model, for which it was downloaded again.
REFETCHED_FOR_ANNOTATION = f"{GROUP}/refetched-for"
# On an LLMDeployment, with any value but "false": the operator changes nothing of it.
PAUSED_ANNOTATION = f"{GROUP}/paused"

FIELD_MANAGER = "fairlead"
FETCH_NAME = "fairlead-fetch"
FETCH_COMPONENT = "fetch"
ENGINE_NAME = "fairlead-engine"
ENGINE_COMPONENT = "engine"
ENGINE_CONTAINER = "engine"
MODEL_CONTAINER = "model"
HTTP_PORT_NAME = "http"
ENGINE_PORT = 8000
ADMIN_PORT = 8001
ROUTER_PORT = 8080
# Metrics of the router and of the operator.
METRICS_PORT = 9090


def child_name(name: str) -> str:
    """Return the name of the Deployment, Service and ServiceAccount of an LLMDeployment."""
    return f"{name}-engine"


def selector(name: str) -> dict[str, str]:
    """Return the labels that select the pods of an LLMDeployment. They must never change."""
    return {"app.kubernetes.io/name": ENGINE_NAME, LLMDEPLOYMENT_LABEL: name}


def selector_text(name: str) -> str:
    """Return the selector in the syntax of a label query."""
    return ",".join(f"{label}={value}" for label, value in selector(name).items())


def pod_labels(name: str) -> dict[str, str]:
    """Return the labels of an LLMDeployment's pods. The version is left out: an upgrade must not roll pods."""
    return {
        **selector(name),
        "app.kubernetes.io/instance": name,
        "app.kubernetes.io/component": ENGINE_COMPONENT,
        "app.kubernetes.io/managed-by": FIELD_MANAGER,
    }


def shared_labels(version: str) -> dict[str, str]:
    """Return the labels of a child that several LLMDeployments share, the same for each of them."""
    return {
        "app.kubernetes.io/managed-by": FIELD_MANAGER,
        VERSION_LABEL: version,
        LLMDEPLOYMENT_LABEL: "",
    }


def child_labels(name: str, version: str) -> dict[str, str]:
    """Return the labels of an LLMDeployment's children, with the version of the operator."""
    return {**pod_labels(name), VERSION_LABEL: version}


def fetch_pod_labels(cache: str) -> dict[str, str]:
    """Return the labels of the pods that download a model into a cache."""
    return {
        "app.kubernetes.io/name": FETCH_NAME,
        "app.kubernetes.io/component": FETCH_COMPONENT,
        "app.kubernetes.io/managed-by": FIELD_MANAGER,
        MODEL_CACHE_LABEL: cache,
    }
