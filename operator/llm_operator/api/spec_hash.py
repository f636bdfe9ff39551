"""Hashes of a spec's fields that pods depend on. The record of a pod template names by one the spec it was made for."""

import hashlib
from typing import Any, get_args

import msgspec

from llm_operator.api.schema import NOT_IN_PODS, Section
from llm_operator.api.sections.routing import Routing
from llm_operator.api.spec import LLMDeploymentSpec

# Begins the hashes of this module's function; those of 0.1.0 begin with a hexadecimal digit.
MARK = "v2-"
EMPTY: tuple[object, ...] = (None, [], {})


def spec_hash(spec: LLMDeploymentSpec) -> str:
    """Return the hash of the fields that pods depend on. Fields that are added later do not change it by default."""
    given = spec if spec.profile else without_zero_gpus(spec)
    fields = pod_fields(given)
    if spec.adapters is not None:
        # Engines serve adapters or not; the list reaches them while they run.
        fields["adapters"] = True
    return MARK + digest(msgspec.json.encode(fields, order="sorted"))


def hash_of_0_1_0(spec: LLMDeploymentSpec) -> str:
    """Return the hash by which release 0.1.0 recorded a spec.

    It covers defaults that are written out, since msgspec leaves out only values that are the default object itself.
    """
    given = msgspec.structs.replace(without_zero_gpus(spec), replicas=1, autoscaling=None, routing=Routing())
    return digest(msgspec.json.encode(given, order="sorted"))


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
        fields = ((field, getattr(value, field.name)) for field in msgspec.structs.fields(value))
        kept = {
            field.encode_name: pod_fields(given)
            for field, given in fields
            if NOT_IN_PODS not in get_args(field.type) and given != field.default
        }
        return {name: given for name, given in kept.items() if given not in EMPTY}
    return [pod_fields(item) for item in value] if isinstance(value, tuple) else value
