"""The administrator's policy for pods, in a file."""

from pathlib import Path

import msgspec

from llm_operator.api.schema import SpecError
from llm_operator.settings import PodPolicy


def read_pod_policy(file: Path) -> PodPolicy:
    """Return the policy in a YAML file. Raises SpecError."""
    try:
        return msgspec.yaml.decode(file.read_bytes(), type=PodPolicy)
    except (OSError, msgspec.MsgspecError) as error:
        raise SpecError("podPolicy", str(error)) from None
