"""Hashes of a spec's fields that pods depend on. The record of a pod template names by one the spec it was made for."""

import hashlib
from collections.abc import Iterator
from functools import cache
from itertools import product
from typing import Any, TypeVar, get_args

import msgspec

from llm_operator.api.model_cache import DEFAULT_ACCESS_MODE
from llm_operator.api.schema import NOT_IN_PODS, Section
from llm_operator.api.sections.model import Model
from llm_operator.api.sections.resources import DEFAULT_GPU_RESOURCE, Resources
from llm_operator.api.spec import LLMDeploymentSpec

# Begins a hash, and names the function that computes it.
MARK = "v2-"
EMPTY: tuple[object, ...] = (None, [], {})

S = TypeVar("S", bound=Section)


def spec_hash(spec: LLMDeploymentSpec) -> str:
    """Return the hash of the fields that pods depend on. Fields that are added later do not change it by default."""
    given = spec if spec.profile else without_zero_gpus(spec)
    fields = pod_fields(given)
    if spec.adapters is not None:
        # Engines serve adapters or not; the list reaches them while they run.
        fields["adapters"] = True
    return MARK + digest(msgspec.json.encode(fields, order="sorted"))


def equal_hashes(spec: LLMDeploymentSpec) -> Iterator[str]:
    """Yield the hashes of a spec as given, and with each default that is not the schema's left out or written out."""
    yield spec_hash(spec)
    for resources, model in product(spellings_of_resources(spec), spellings_of_model(spec.model)):
        yield spec_hash(msgspec.structs.replace(spec, resources=resources, model=model))


def spellings_of_resources(spec: LLMDeploymentSpec) -> tuple[Resources, ...]:
    # A profile may have another value.
    return (
        (spec.resources,) if spec.profile else spellings(spec.resources, "gpu_resource", DEFAULT_GPU_RESOURCE)
    )


def spellings_of_model(model: Model) -> tuple[Model, ...]:
    if model.cache is None or model.cache.size is None:
        return (model,)
    caches = spellings(model.cache, "access_mode", DEFAULT_ACCESS_MODE)
    return tuple(msgspec.structs.replace(model, cache=cache) for cache in caches)


def spellings(section: S, field: str, default: str) -> tuple[S, ...]:
    """Return the section without and with the default of a field, if that is its value."""
    if getattr(section, field) not in (None, default):
        return (section,)
    return tuple(msgspec.structs.replace(section, **{field: value}) for value in (None, default))


def without_zero_gpus(spec: LLMDeploymentSpec) -> LLMDeploymentSpec:
    """Return the spec without `gpu: 0`, which is the default, and differs from it only where there is a profile."""
    if spec.resources.gpu != 0:
        return spec
    return msgspec.structs.replace(spec, resources=msgspec.structs.replace(spec.resources, gpu=None))


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def pod_fields(value: Any) -> Any:
    """Return a JSON value without the fields that pods do not depend on, and without defaults and empty values."""
    if isinstance(value, Section):
        fields = ((field, getattr(value, field.name)) for field in fields_in_pods(type(value)))
        kept = {field.encode_name: pod_fields(given) for field, given in fields if given != field.default}
        return {name: given for name, given in kept.items() if given not in EMPTY}
    return [pod_fields(item) for item in value] if isinstance(value, tuple) else value


@cache
def fields_in_pods(section: type[Section]) -> tuple[msgspec.structs.FieldInfo, ...]:
    """Return the fields of a section that pods depend on. Cached, since msgspec evaluates annotations each time."""
    return tuple(
        field for field in msgspec.structs.fields(section) if NOT_IN_PODS not in get_args(field.type)
    )
