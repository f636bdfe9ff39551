"""The verification of replacements, on a two-layer random copy of the model."""

import logging
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from engine_server.modeling.attention.interface import UnsupportedModelError
from engine_server.modeling.attention.states import StepRecurrence
from engine_server.modeling.cache.spec import WindowSpec
from engine_server.modeling.formats.products import as_loaded
from engine_server.modeling.layers.kernel_sets.kernel_set import KernelSet
from engine_server.modeling.layers.misfits import misfits
from engine_server.modeling.loader.attention import for_text
from engine_server.modeling.loader.backbone import backbone
from engine_server.modeling.loader.layer_types import attending_layers
from engine_server.modeling.loader.probe import Probe, run
from engine_server.modeling.loader.refusal import ERRORS
from engine_server.modeling.loader.sample import WINDOW, shortened_settings
from engine_server.modeling.replacements.order import REPLACEMENTS
from engine_server.modeling.replacements.replacement import Choices, Replacement, Setup
from engine_server.modeling.replacements.report import PassReport

# More than two windows of the copy.
NUM_TOKENS = 8
# Some tables of positions reserve the first two rows for padding.
POSITIONS = np.arange(NUM_TOKENS) + 2
logger = logging.getLogger(__name__)


class Trial:
    """A search for the versions of ours that don't change the output of a two-layer copy."""

    def __init__(self, copy: PreTrainedModel, kernels: KernelSet, device: torch.device) -> None:
        """copy: see `sample_copy`, with our attention and recurrences. Raises UnsupportedModelError if it can't run."""
        self.device = device
        self._setup = Setup(kernels, device, as_loaded)
        self._plain = copy
        self._sites = StepRecurrence()
        self._expected = self._run(copy)

    @property
    def recurrent(self) -> bool:
        """True if the copy carries states from token to token. To be asked after `check_attention`."""
        return bool(self._sites.shapes)

    def choose(self) -> Choices:
        """Return our versions, found one kind after another: each looks for its sites in a copy with those before."""
        choices: dict[Replacement, Mapping[Any, Any]] = {}
        for kind in REPLACEMENTS:
            try:
                choices[kind] = self._versions(kind, choices)
            except misfits() as error:
                logger.warning("%s: nothing is replaced, since that fails: %s", kind.name, error)
                choices[kind] = {}
        return choices

    def _versions(self, kind: Replacement, choices: Choices) -> Mapping[Any, Any]:
        """Return the versions of a kind that compute the same, in addition to `choices`."""
        copy, _ = self._copy(choices)
        modules = {site.key: site.module for site in kind.sites(copy)}
        found = {key: kind.choose(module, self._setup) for key, module in modules.items()}
        versions = {key: version for key, version in found.items() if version is not None}
        if not versions or kind.holds_weights:
            return versions
        _, reports = self._copy({**choices, kind: versions})
        lacking = ", ".join(sorted(map(name_of_key, versions.keys() - reports[kind].applied)))
        if lacking:
            logger.error("%s: nothing is replaced, since none of %s is in the copy", kind.name, lacking)
            return {}
        return self._verified(kind, versions, choices)

    def _verified(
        self, kind: Replacement, versions: Mapping[Any, Any], choices: Choices
    ) -> Mapping[Any, Any]:
        """Return those versions of a kind with which the copy's output is the same, in addition to `choices`."""
        if kind.one_by_one:
            versions = {
                key: version
                for key, version in versions.items()
                if self._agrees({**choices, kind: {key: version}})
            }
        if kind.has_kernel is not None and versions:
            self._agrees({**choices, kind: versions})
            versions = {key: version for key, version in versions.items() if kind.has_kernel(version)}
        if not versions or self._agrees({**choices, kind: versions}):
            return versions
        logger.warning(
            "%s: nothing is replaced, since it would change the output of the two-layer copy", kind.name
        )
        return {}

    def _agrees(self, choices: Choices) -> bool:
        """Check that the copy's output is the same up to rounding."""
        try:
            found = self._run(self._copy(choices)[0])
        except misfits() as error:
            # Most are of a module with other inputs or outputs, as some models have.
            fails = isinstance(error, RuntimeError) or type(error).__module__.startswith("triton.")
            level = logging.WARNING if fails else logging.DEBUG
            logger.log(level, "a replacement fails on the two-layer copy: %s", error)
            return False
        slack = max(1e-4, 16 * torch.finfo(found.dtype).eps)
        scale = self._expected.float().std().item()
        return torch.allclose(found, self._expected, rtol=slack, atol=slack * scale)

    def _copy(self, choices: Choices) -> tuple[PreTrainedModel, dict[Replacement, PassReport]]:
        """Return a copy with these versions, and the report of each kind."""
        copy = deepcopy(self._plain)
        return copy, {
            kind: kind.apply(copy, versions, self._setup)
            for kind, versions in choices.items()
            if not kind.holds_weights
        }

    def _run(self, copy: PreTrainedModel) -> Tensor:
        """Return the hidden states of some tokens."""
        return run(backbone(copy), Probe(), POSITIONS, self.device, {})

    def check_attention(self, original: Tensor | None) -> None:
        """Raise UnsupportedModelError if the copy attends otherwise than by transformers' own attention.

        original: see `original_states`.
        """
        copy, seen = nn.Module.float(deepcopy(self._plain)), Probe()
        found = run(backbone(copy), seen, POSITIONS, self.device, {}, self._sites)
        layers = attending_layers(copy.config.get_text_config())
        seen.check_calls(f"a copy of {type(copy).__name__}", layers, numbered=False)
        if original is None:
            return
        equal = torch.allclose(found, original, rtol=1e-3, atol=1e-3 * original.std().item())
        if not equal or (
            has_one_window(copy) and {shape.spec for shape in seen.shapes.values()} != {WindowSpec(WINDOW)}
        ):
            windows = " or ".join(shortened_settings(copy.config.get_text_config()))
            where = f" beyond its {windows}" if windows else ""
            raise UnsupportedModelError(
                f"{type(copy).__name__} does not attend as in transformers{where}; it would be computed wrongly"
            )


def name_of_key(key: object) -> str:
    """Return the name of the class or function by which a version is chosen."""
    named: Any = key[0] if isinstance(key, tuple) else key
    name: str = named.__name__
    return name


def has_one_window(copy: PreTrainedModel) -> bool:
    """Return True if transformers keeps no more than the window in any layer's cache."""
    text = copy.config.get_text_config()
    return getattr(text, "layer_types", None) is None and getattr(text, "sliding_window", None) == WINDOW


@torch.inference_mode()
def original_states(copy: PreTrainedModel, device: torch.device) -> Tensor | None:
    """Return the hidden states of the trial's tokens in float32, by transformers' own attention.

    copy: see `sample_copy`, as transformers made it. None if that attention fails, or is known to be wrong.
    """
    if getattr(copy.config, "alibi", False):
        return None  # in transformers 5.17 the eager attention of Falcon adds ALiBi twice
    original = nn.Module.float(deepcopy(copy))
    tokens, positions = (torch.from_numpy(one).to(device)[None] for one in (np.arange(NUM_TOKENS), POSITIONS))
    try:
        original.set_attn_implementation(for_text(original.config, "eager"))
        states: Tensor = backbone(original)(input_ids=tokens, position_ids=positions, use_cache=False)[0]
    except ERRORS as error:
        logger.warning(
            "the attention of a two-layer copy is not compared with that of transformers: %s", error
        )
        return None
    return states
