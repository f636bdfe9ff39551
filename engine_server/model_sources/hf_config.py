"""A model's config.json as transformers reads it, with the overrides and the consent to remote code of its user."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine_server.model_sources import rope_overrides

if TYPE_CHECKING:
    from transformers import PretrainedConfig


def read_hf_config(
    folder: Path, overrides: Mapping[str, Any] | None = None, trust_remote_code: bool = False
) -> PretrainedConfig:
    """Return transformers' configuration of the model in `folder`. Raises ValueError.

    overrides: settings that replace those of config.json; each must be one that the configuration has. Those of a
    rope keep the parameters that they don't name.
    trust_remote_code: run the folder's own configuration class, if it has one.
    """
    from transformers import AutoConfig  # takes seconds

    check_code(folder, trust_remote_code)
    overrides = overrides or {}
    ropes = {name: overrides[name] for name in rope_overrides.NAMES if name in overrides}
    config: PretrainedConfig
    try:
        config, unknown = AutoConfig.from_pretrained(
            folder,
            local_files_only=True,
            trust_remote_code=trust_remote_code,
            return_unused_kwargs=True,
            **{name: value for name, value in overrides.items() if name not in ropes},
        )
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(
            f"{folder / 'config.json'} is no configuration that transformers knows: {error}"
        ) from error
    if unknown:
        raise ValueError(f"hf_overrides has {', '.join(unknown)}, which {type(config).__name__} doesn't know")
    if ropes:
        rope_overrides.override_ropes(config, ropes)
    return config


def check_code(folder: Path, trust_remote_code: bool) -> None:
    """Refuse code of the model that its user didn't consent to, or that is not in `folder`. Raises ValueError."""
    from transformers import CONFIG_MAPPING

    try:
        settings = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{folder / 'config.json'} is no configuration that transformers knows: {error}"
        ) from error
    classes = settings.get("auto_map") or {}
    if not trust_remote_code:
        if classes and settings.get("model_type") not in CONFIG_MAPPING:
            raise ValueError(
                f"{folder} brings Python code of its own, which runs only with trust_remote_code=True: "
                f"{', '.join(map(str, classes.values()))}"
            )
        return
    for name in classes.values():
        for path in name if isinstance(name, list) else [name]:
            if path is not None and "--" in path:
                raise ValueError(f"{folder} names code in another repository, {path}; only local code is run")
