"""The identity of a model's cache: deployments with the same one share a claim and a download."""

import hashlib
import json
from typing import NamedTuple

from llm_operator.api.sections.model import Model

DEFAULT_ACCESS_MODE = "ReadWriteMany"


class ModelCache(NamedTuple):
    """The place of a downloaded model."""

    # Of the model's folder on the volume, of the Job, and of a claim that is created.
    name: str
    claim: str
    # True for a claim that the operator creates, and garbage collection removes with its last owner.
    is_created: bool
    access_mode: str

    def mark(self, claim_uid: str) -> str:
        """Return the record that the model is complete; a claim that is created anew has another one."""
        return f"{self.name}/{claim_uid}" if self.is_created else self.name


def model_cache(model: Model) -> ModelCache | None:
    """Return the cache of a model, None without one. Its name depends on all that the content may depend on."""
    if model.cache is None:
        return None
    mode = model.cache.access_mode or DEFAULT_ACCESS_MODE
    secret = model.secret_ref.name if model.secret_ref else ""
    place = model.cache.claim or ["", model.cache.class_, mode]
    digest = hashlib.sha256(json.dumps([model.uri, secret, place]).encode()).hexdigest()
    name = f"model-{digest[:16]}"
    return ModelCache(name, model.cache.claim or name, model.cache.claim is None, mode)
