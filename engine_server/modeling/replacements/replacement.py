"""A kind of module that we replace, and the one way in which it is replaced, in the two-layer copy and in the model."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn

from engine_server.modeling.formats.weight_format import WeightLayout
from engine_server.modeling.layers.kernel_sets.kernel_set import KernelSet
from engine_server.modeling.layers.weight_layer import original_class
from engine_server.modeling.replacements.report import PassReport, Tally


@dataclass(frozen=True)
class Setup:
    """What our modules compute with."""

    kernels: KernelSet
    device: torch.device
    # Of the weights that a replacement gives to a module.
    layout: WeightLayout
    # Results are required to be bitwise independent of batch composition.
    batch_invariant: bool = False


class Site(NamedTuple):
    """A module that may be replaced, and where it is set."""

    key: Any
    module: nn.Module
    parent: nn.Module
    name: str


@dataclass(frozen=True, eq=False)
class Replacement:
    """A kind of module that we replace. Its sites have keys, and each key has a version of ours, or none."""

    # In reports and logs.
    name: str
    # Takes a module and its parent. Returns that by which our version is chosen: the module's class or a function that
    # it calls, or a tuple that begins with one; None for a module that is no site.
    key: Callable[[nn.Module, nn.Module], Any]
    # Takes the module of a site. Returns our version that computes the same, or None.
    choose: Callable[[Any, Setup], Any]
    # Takes the module of a site and our version. Returns the module that takes its place, often itself, and its name in
    # the report.
    replace: Callable[[Any, Any, Setup], tuple[nn.Module, str]]
    # Takes the key of a site without a version. Returns the reason for the report; None: not reported.
    reason: Callable[[Any], str | None] = lambda key: None
    # The version of every other key.
    default: Any = None
    # `choose` only finds candidates, of which each is compared alone in a forward of the copy.
    one_by_one: bool = False
    # Versions choose their kernel in a forward of the copy; the function returns False for those without one.
    has_kernel: Callable[[Any], bool] | None = None
    # Its modules hold weights. They are replaced before weights are cut, and `choose` alone verifies them, since those
    # of the copy have none.
    holds_weights: bool = False
    # Completes a model of which all sites are replaced.
    finish: Callable[[nn.Module], None] = lambda model: None

    def sites(self, model: nn.Module) -> Iterator[Site]:
        """Yield the sites in a model."""
        for parent in model.modules():
            for name, module in parent.named_children():
                key = self.key(module, parent)
                if key is not None:
                    yield Site(key, module, parent, name)

    def apply(self, model: nn.Module, versions: Mapping[Any, Any], setup: Setup) -> PassReport:
        """Replace the modules whose keys have a version."""
        tally = Tally(self.name)
        ours: dict[nn.Module, nn.Module] = {}
        for site in list(self.sites(model)):
            original, version = original_class(site.module), versions.get(site.key, self.default)
            if version is None:
                reason = self.reason(site.key)
                if reason is not None:
                    tally.left(original, reason)
                continue
            if site.module not in ours:
                ours[site.module], replacement = self.replace(site.module, version, setup)
                tally.replaced(original, replacement, site.key)
            setattr(site.parent, site.name, ours[site.module])
        self.finish(model)
        return tally.report()


# Our versions, by kind and key.
Choices = Mapping[Replacement, Mapping[Any, Any]]
