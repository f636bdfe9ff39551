"""The credentials of the model's source, from a Secret. Only containers that fetch the model or adapters get them."""

from typing import Any

from engine_server.contract.cluster.model_uri import SOURCES, parse
from llm_operator.api.sections.model import Model


def variables(model: Model) -> list[dict[str, Any]]:
    """Return the environment variables that refer to the model's Secret, if it has one that its source reads."""
    if model.secret_ref is None:
        return []
    name = model.secret_ref.name
    return [
        variable(each.name, name, each.key, **({} if each.is_required else {"optional": True}))
        for each in parse(model.uri).SECRET
    ]


def adapter_variables(model: Model) -> list[dict[str, Any]]:
    """Return the variables of an engine that fetches adapters, from any source, with the model's Secret."""
    if model.secret_ref is None:
        return []
    name = model.secret_ref.name
    return [
        variable(each.name, name, each.key, optional=True) for source in SOURCES for each in source.SECRET
    ]


def variable(name: str, secret: str, key: str, **options: bool) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key, **options}}}
