"""The platform interface: everything that depends on the kind of device or on compiled kernels."""

from abc import abstractmethod
from typing import ClassVar

import torch
from torch import Tensor, nn

from engine_server.modeling.attention.interface import AttentionBackend
from engine_server.modeling.attention.step_attention import StepAttention
from engine_server.modeling.cache.layout import Layout
from engine_server.modeling.device.interface import Device
from engine_server.modeling.formats.products import ProductTable
from engine_server.modeling.graphs.captured_step import CapturedStep, StepPart
from engine_server.modeling.graphs.step_graphs import StepGraphs, ladder
from engine_server.modeling.layers.kernel_sets.kernel_set import KernelSet


class Platform(Device):
    """One rank's device with the kernels that can run on it."""

    # Steps can be captured: on a GPU none of our kernels asks the host for anything.
    captures_graphs: ClassVar[bool] = False
    # A captured step of T decodes computes any step of T tokens, with prompts too: the sequences are an input of it.
    captures_any_step: ClassVar[bool] = False
    # Tokens are drawn by kernels/sampling.py, which a graph can capture.
    samples_by_kernel: ClassVar[bool] = False
    # Kernels are compiled at their first call.
    compiles_late: ClassVar[bool] = False
    # Kernels with results bitwise independent of batch composition are available.
    batch_invariant: ClassVar[bool] = False

    # Kernels

    def compiled_by(self) -> str | None:
        """Return what compiled the kernels and for what, for the log; None: there are none, which is logged already."""
        return None

    @property
    @abstractmethod
    def module_kernels(self) -> KernelSet:
        """Return the kernels for norms, gates and rotations from which the passes over a model choose."""

    @property
    @abstractmethod
    def weight_layout(self) -> ProductTable:
        """Return the layout in which linear layers multiply fastest."""

    @property
    def fixed_order_layout(self) -> ProductTable:
        """Return the layout whose products are bitwise independent of batch composition."""
        raise TypeError(
            f"{type(self).__name__} has no products that are bitwise independent of batch composition"
        )

    def check_fixed_order(self, model: nn.Module) -> None:
        """Raise UnsupportedModelError for modules without weights whose results may depend on the batch.

        model: after all replacements. Layers with weights are checked for every platform.
        """

    @abstractmethod
    def paged_attention(
        self, layout: Layout, pool_sizes: list[int], block_size: int, dtype: torch.dtype
    ) -> AttentionBackend:
        """Allocate a KV cache of `dtype` and return its attention backend."""

    def step_attention(self) -> AttentionBackend:
        """Return the attention of encoders, which have no KV cache."""
        return StepAttention(self.writes_scores)

    def capture(self, part: StepPart) -> CapturedStep:
        """Capture a part of steps. Raises RuntimeError if that is impossible."""
        return StepGraphs(part.name, part.run, ladder(part.most, part.least), part.prepare)

    def likeliest(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return the largest logit of each row of `logits` [n, vocabulary], and its index, int64; [n] each."""
        largest, tokens = logits.max(dim=-1)
        return largest, tokens

    @abstractmethod
    def computing_dtype(self, weights: torch.dtype, asked: bool) -> torch.dtype:
        """Return the dtype to compute in; `asked`: `weights` comes from the user, not from the model's files."""
