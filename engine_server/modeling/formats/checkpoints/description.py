"""The description of a folder's quantised weights: in config.json, or in a file of the library that made them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from engine_server.contract.base.quoting import quote
from engine_server.model_sources.folder import CONFIG, json_object

MODELOPT, AUTOGPTQ = "hf_quant_config.json", "quantize_config.json"
# Settings of ModelOpt that both files have.
COMMON = ("quant_algo", "group_size")


class Description(NamedTuple):
    # As a config's `quantization_config` has them.
    settings: Mapping[str, Any]
    # For messages.
    place: str
    # It is in config.json, so that weights are certain to be quantised.
    in_config: bool


def describe(folder: Path, config: Any) -> Description | None:
    """Return the description of the quantised weights in a folder, if it has one.

    config: the `quantization_config` in config.json. Raises ValueError for files that disagree.
    """
    place = f"quantization_config in {folder / CONFIG}"
    if isinstance(config, Mapping) and config.get("quant_method") == "modelopt":
        return Description(
            _agreed(_flat(config), _by_modelopt(folder), place, folder / MODELOPT), place, True
        )
    if config is not None:
        return Description(config, place, True)
    modelopt = _by_modelopt(folder)
    if modelopt.get("quant_algo") is not None:
        return Description({"quant_method": "modelopt"} | modelopt, str(folder / MODELOPT), False)
    if (folder / AUTOGPTQ).is_file():
        settings = {"quant_method": "gptq"} | json_object(folder / AUTOGPTQ)
        return Description(settings, str(folder / AUTOGPTQ), False)
    return None


def _by_modelopt(folder: Path) -> dict[str, Any]:
    """Return the settings in ModelOpt's own file; none without one."""
    return _flat(json_object(folder / MODELOPT)) if (folder / MODELOPT).is_file() else {}


def _flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with those of the object `quantization`, in which ModelOpt's file has most of them."""
    own = dict(settings)
    inner = own.pop("quantization", None) or {}
    if not isinstance(inner, Mapping):
        raise ValueError(f"{MODELOPT} has quantization {quote(inner)}; expected is an object")
    return own | dict(inner)


def _agreed(config: dict[str, Any], other: dict[str, Any], place: str, file: Path) -> dict[str, Any]:
    """Return the config's settings, and those that it lacks from ModelOpt's file. Raises ValueError if they differ."""
    for name in COMMON:
        first, second = config.get(name), other.get(name)
        if first is not None and second is not None and first != second:
            raise ValueError(f"{place} has {name} {quote(first)}, and {file} has {quote(second)}")
    return config | {name: other[name] for name in COMMON if config.get(name) is None and name in other}
