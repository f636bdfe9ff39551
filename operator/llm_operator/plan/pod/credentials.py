"""The credentials of the model's source, from a Secret. Only containers that fetch the model or adapters get them."""

from typing import Any

from engine_server.contract.cluster.model_uri import BUCKET_VARIABLES, Bucket, HubRepository, parse
from llm_operator.api.sections.model import Model


def variables(model: Model) -> list[dict[str, Any]]:
    """Return the environment variables that refer to the model's Secret, if it has one that its source reads."""
    if model.secret_ref is None:
        return []
    name = model.secret_ref.name
    match parse(model.uri):
        case Bucket():
            # None is required, since the cloud may give the pod an identity.
            return [variable(key, name, key, optional=True) for key in BUCKET_VARIABLES]
        case HubRepository():
            return [variable("HF_TOKEN", name, "token")]
        case _:
            return []


def adapter_variables(model: Model) -> list[dict[str, Any]]:
    """Return the variables of an engine that fetches adapters, from a hub or a bucket, with the model's Secret."""
    if model.secret_ref is None:
        return []
    name = model.secret_ref.name
    hub = variable("HF_TOKEN", name, "token", optional=True)
    return [hub, *(variable(key, name, key, optional=True) for key in BUCKET_VARIABLES)]


def variable(name: str, secret: str, key: str, **options: bool) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key, **options}}}
