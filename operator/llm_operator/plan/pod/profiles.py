"""The profile that an LLMDeployment chose: values that hold where its spec has none of its own."""

from typing import Any

import msgspec

from llm_operator.api.schema import SpecError
from llm_operator.api.sections.resources import Resources
from llm_operator.api.spec import LLMDeployment
from llm_operator.settings import Settings


def profile_of(deployment: LLMDeployment, settings: Settings) -> dict[str, Any]:
    """Return the chosen profile, empty if none is chosen. Raises SpecError for an unknown one."""
    name = deployment.spec.profile
    if name is None:
        return {}
    if name not in settings.profiles:
        known = ", ".join(sorted(settings.profiles)) or "none"
        raise SpecError("spec.profile", f"the operator has no profile {name!r}; it has: {known}")
    profile: dict[str, Any] = settings.profiles[name]
    return profile


def with_resources(deployment: LLMDeployment, profile: dict[str, Any]) -> LLMDeployment:
    """Return the deployment with the resources of a profile where the spec has none of its own."""
    spec = deployment.spec
    given = msgspec.to_builtins(spec.resources)
    resources = msgspec.convert(profile.get("resources", {}) | given, Resources)
    return msgspec.structs.replace(deployment, spec=msgspec.structs.replace(spec, resources=resources))
