"""The interface of the readers of quantised checkpoints."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from engine_server.modeling.formats.checkpoints.stored import StoredTensor, StoredWeight


class Scheme(ABC):
    """One form in which checkpoints store quantised weights."""

    @abstractmethod
    def __init__(self, settings: Mapping[str, Any]) -> None:
        """Read a config's `quantization_config`. Raises ValueError for settings that are not supported."""

    @abstractmethod
    def weights(self, parts: dict[str, StoredTensor]) -> dict[str, StoredWeight]:
        """Take one module's quantised weights out of `parts`, its tensors by their names within the module.

        Return the weights by their names within the module; modules that are not quantised have none. Raises
        ValueError, which names the tensor, for tensors that don't fit together or don't fit the settings.
        """


def check_group(setting: Any, inputs: int, scales: StoredTensor, groups: int) -> None:
    """Raise ValueError if the number of groups is not that of a config's group size.

    setting: inputs that share a scale; -1: all; None: the config doesn't say.
    """
    if setting is None:
        return
    size = min(setting, inputs) if isinstance(setting, int) and setting != -1 else inputs
    if not isinstance(setting, int) or size * groups != inputs:
        raise ValueError(
            f"{scales.name} has {groups} groups of {inputs} inputs; the config's group size is {setting}"
        )


def taken(parts: dict[str, StoredTensor], name: str, beside: str) -> StoredTensor:
    """Take the tensor `name` out of `parts`. Raises ValueError if there is only `beside`."""
    if name not in parts:
        raise ValueError(f"{beside} has no {name} beside it")
    return parts.pop(name)
