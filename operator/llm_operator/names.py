"""Every name that others rely on: the API's group, labels, annotations, and what children are called."""

GROUP = "fairlead.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "LLMDeployment"
PLURAL = "llmdeployments"
SHORT_NAME = "llmd"

FIELD_MANAGER = "fairlead"
LLMDEPLOYMENT_LABEL = f"{GROUP}/llmdeployment"
SPEC_HASH_ANNOTATION = f"{GROUP}/spec-hash"
POD_TEMPLATE_ANNOTATION = f"{GROUP}/pod-template"

ENGINE = "fairlead-engine"
ENGINE_CONTAINER = "engine"
MODEL_CONTAINER = "model"
HTTP_PORT = "http"
ENGINE_PORT = 8000

NAME_LIMIT = 52  # leaves room for the children's suffixes within a label's 63 characters


def child_name(name: str) -> str:
    """The name of an LLMDeployment's Deployment, Service and ServiceAccount."""
    return f"{name}-engine"


def selector(name: str) -> dict[str, str]:
    """The labels that find an LLMDeployment's pods; they never change."""
    return {"app.kubernetes.io/name": ENGINE, LLMDEPLOYMENT_LABEL: name}


def selector_text(name: str) -> str:
    """The same as queries spell it."""
    return ",".join(f"{label}={value}" for label, value in selector(name).items())


def pod_labels(name: str) -> dict[str, str]:
    return {
        **selector(name),
        "app.kubernetes.io/instance": name,
        "app.kubernetes.io/component": "engine",
        "app.kubernetes.io/managed-by": "fairlead",
    }


def child_labels(name: str, version: str) -> dict[str, str]:
    """What children carry; the version stays out of pod templates, so that an upgrade rolls nothing."""
    return {**pod_labels(name), "app.kubernetes.io/version": version}
