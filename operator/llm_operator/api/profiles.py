"""The profiles that an LLMDeployment may choose: values for its spec, from the operator's administrator."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, inspect

from llm_operator.api import validation
from llm_operator.api.schema import Object, Section, SpecError, shaped
from llm_operator.api.sections.pod_template import PodTemplate
from llm_operator.api.sections.resources import Resources
from llm_operator.api.spec import PROFILE_PATTERN, without_nulls


class Profile(Section, frozen=True):
    resources: Resources = Resources()
    pod_template: Annotated[Object | None, shaped(PodTemplate)] = None


PROFILES = dict[Annotated[str, Meta(pattern=PROFILE_PATTERN)], Profile]


def read_profiles(file: Path) -> Mapping[str, Any]:
    """Return the profiles in a YAML file by name, as JSON. Raises SpecError."""
    try:
        profiles = without_nulls(msgspec.yaml.decode(file.read_bytes()))
    except (OSError, msgspec.MsgspecError) as error:
        raise SpecError("profiles", str(error)) from None
    validation.check(profiles, inspect.type_info(PROFILES), "profiles")
    return msgspec.convert(profiles, dict[str, Any])
