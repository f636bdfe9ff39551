"""What the passes replace in each architecture of docs/models.md, compared with a file for each platform."""

from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from architectures import ARCHITECTURES, SIZES, Architecture
from snapshots import assert_unchanged
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from engine_server.modeling.device.communicator import Communicator
from engine_server.modeling.loader.attention import implementation_for
from engine_server.modeling.loader.backbone import backbone
from engine_server.modeling.loader.passes import LoadPlan, replace_modules, verified_choices
from engine_server.modeling.platform.interface import Platform

FOLDER = Path(__file__).parent / "modeling" / "snapshots"
# Architectures that between them have every kind of replacement.
QUICK = [one for one in ARCHITECTURES if one.name in ("llama", "qwen3", "gpt2", "gpt-oss", "falcon, ALiBi")]
OTHERS = [one for one in ARCHITECTURES if one not in QUICK]
HEADING = "## "


def assert_reports_unchanged(platform: Platform, name: str, architectures: list[Architecture]) -> None:
    """Compare the passes' reports for some architectures with the file of a platform, or write them."""
    file = FOLDER / f"pass_reports_{name}.txt"
    sections = read_sections(file) | {one.name: describe_passes(one, platform) for one in architectures}
    assert_unchanged(
        file,
        "\n".join(f"{HEADING}{one.name}\n{sections.get(one.name, '')}" for one in ARCHITECTURES),
    )


def read_sections(file: Path) -> dict[str, str]:
    """Return the text below each heading of a file, none if it doesn't exist."""
    text = file.read_text() if file.exists() else ""
    parts = [part.partition("\n") for part in f"\n{text}".split(f"\n{HEADING}")[1:]]
    return {name: body for name, _, body in parts}


def architecture_named(name: str) -> Architecture:
    return next(one for one in ARCHITECTURES if one.name == name)


def build(architecture: Architecture) -> Any:
    """Return a model on the meta device, as the passes find it."""
    kind = getattr(transformers, architecture.model)
    config = kind.config_class(**SIZES | architecture.settings)
    with torch.device("meta"):
        return kind._from_config(config, attn_implementation=implementation_for(config))


def describe_passes(architecture: Architecture, platform: Platform) -> str:
    """Return the report of each pass that examined something, and the number of forwards that it took to verify."""
    model = build(architecture)
    forwards: list[type] = []

    def record(counted: type, module: nn.Module, inputs: Any) -> None:
        if type(module) is counted:
            forwards.append(counted)

    hook = register_module_forward_pre_hook(partial(record, type(backbone(model))))
    try:
        choices = verified_choices(model, platform)
    finally:
        hook.remove()
    reports = replace_modules(model, LoadPlan(platform, Communicator(), False, choices))
    lines = [str(report) for report in reports if report.replaced or report.left]
    return "\n".join((f"forwards of the copy: {len(forwards)}", *lines)) + "\n"
