"""Labels, annotations, and the names of children, containers and ports in a cluster."""

from engine_server.contract.api import GROUP

# Carried by every child; EndpointSlices inherit it from their Service.
LLMDEPLOYMENT_LABEL = f"{GROUP}/llmdeployment"
SPEC_HASH_ANNOTATION = f"{GROUP}/spec-hash"
POD_TEMPLATE_ANNOTATION = f"{GROUP}/pod-template"

FIELD_MANAGER = "fairlead"
ENGINE_NAME = "fairlead-engine"
ENGINE_COMPONENT = "engine"
ENGINE_CONTAINER = "engine"
MODEL_CONTAINER = "model"
HTTP_PORT_NAME = "http"
ENGINE_PORT = 8000
ADMIN_PORT = 8001
ROUTER_PORT = 8080


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


def child_labels(name: str, version: str) -> dict[str, str]:
    """Return the labels of an LLMDeployment's children, with the version of the operator."""
    return {**pod_labels(name), "app.kubernetes.io/version": version}
