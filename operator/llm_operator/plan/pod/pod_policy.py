"""The check of a spec against the administrator's policy for pods."""

from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any

from llm_operator.api.schema import SpecError
from llm_operator.api.spec import LLMDeployment
from llm_operator.plan.pod.overlay import PATH
from llm_operator.settings import Patterns, PodPolicy

CONTAINER_LISTS = ("containers", "initContainers")
# A value of the spec, its path, and what is allowed there.
Given = tuple[str, Any, Patterns]


def check(deployment: LLMDeployment, profile: dict[str, Any], policy: PodPolicy) -> None:
    """Raise SpecError for a value of the spec that the policy does not allow. What a profile has is not the spec's."""
    for path, value, allowed in given_values(deployment, policy):
        if value is None or allowed is None or any(fnmatchcase(str(value), each) for each in allowed):
            continue
        raise SpecError(path, f"the operator's policy allows {', '.join(allowed) or 'none'}; it is {value!r}")
    if deployment.namespace in policy.required_profiles:
        check_profile(deployment, profile, policy.required_profiles[deployment.namespace])


def given_values(deployment: LLMDeployment, policy: PodPolicy) -> Iterator[Given]:
    """Yield the bounded values of a spec; None for one that is absent."""
    spec = deployment.spec
    template = spec.pod_template or {}
    pod = template.get("spec") or {}
    yield f"{PATH}.spec.priorityClassName", pod.get("priorityClassName"), policy.priority_classes
    yield f"{PATH}.spec.nodeName", pod.get("nodeName"), None if policy.node_name else ()
    yield f"{PATH}.spec.schedulerName", pod.get("schedulerName"), policy.schedulers
    yield f"{PATH}.spec.runtimeClassName", pod.get("runtimeClassName"), policy.runtime_classes
    yield "spec.engine.image", spec.engine.image, policy.images
    for containers in CONTAINER_LISTS:
        for index, container in enumerate(pod.get(containers) or ()):
            yield f"{PATH}.spec.{containers}[{index}].image", container.get("image"), policy.images
    for index, volume in enumerate(pod.get("volumes") or ()):
        image = (volume.get("image") or {}).get("reference")
        yield f"{PATH}.spec.volumes[{index}].image.reference", image, policy.images
        for source in (volume.get("projected") or {}).get("sources") or ():
            for kind in source:
                yield f"{PATH}.spec.volumes[{index}].projected", kind, policy.projected_sources
    annotations = (template.get("metadata") or {}).get("annotations") or {}
    for key in annotations:
        yield f"{PATH}.metadata.annotations", key, policy.annotations
    for key in spec.service_account.annotations or {}:
        yield "spec.serviceAccount.annotations", key, policy.annotations


def check_profile(deployment: LLMDeployment, profile: dict[str, Any], required: tuple[str, ...]) -> None:
    """Raise SpecError unless one of the required profiles is chosen, and none of its pod's fields is replaced."""
    if deployment.spec.profile not in required:
        names = ", ".join(required)
        raise SpecError("spec.profile", f"one of the profiles {names} is required in {deployment.namespace}")
    fixed = (profile.get("podTemplate") or {}).get("spec") or {}
    given = (deployment.spec.pod_template or {}).get("spec") or {}
    for name in sorted(fixed.keys() & given.keys()):
        raise SpecError(f"{PATH}.spec.{name}", "this field is the required profile's")
