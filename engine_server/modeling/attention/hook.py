"""The attention hook: the function by which a transformers model reaches the KV cache.

A forward runs in its model's `ForwardContext`; every attention layer then calls `paged_attention` with the whole flat
batch, which the context's backend computes. The model's own code stays unchanged.
"""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface

from engine_server.modeling.attention.interface import AttentionBackend, StepInputs, UnsupportedModelError
from engine_server.modeling.attention.states import Recurrence, StepRecurrence
from engine_server.modeling.device.progress import ProgressClock
from engine_server.modeling.device.timing import DeviceTimer
from engine_server.modeling.heads.pending import NOTHING_PENDING, Heads, PendingHeads
from engine_server.modeling.heads.scoring import Scoring
from engine_server.modeling.heads.window import Window

# The name under which transformers finds the hook.
IMPLEMENTATION = "fairlead"

# Options that can't change the result: positions and sequences are in the step's inputs, and the others request extra
# outputs, or logits of some tokens.
HARMLESS = (
    "position_ids",
    "use_cache",
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
    "return_dict",
    "logits_to_keep",
)
# Likewise, of attention.
HARMLESS_TO_ATTENTION = (*HARMLESS, "deterministic")

_running: "ContextVar[ForwardContext | None]" = ContextVar("forward context", default=None)


class ForwardContext:
    """One model's forwards: its attention backend, and the inputs of the running forward.

    A context runs one forward at a time. Forwards of several models, such as a target and its draft, may interleave,
    nest, and run in different threads.
    """

    def __init__(
        self,
        backend: AttentionBackend,
        timer: DeviceTimer | None = None,
        progress: ProgressClock | None = None,
        recurrence: Recurrence | None = None,
    ) -> None:
        """timer: measures the forwards' time; progress: ticks at every layer.

        recurrence: the states of recurrent layers; None: sequences begin and end in one step.
        """
        self.backend = backend
        self.recurrence = recurrence or StepRecurrence()
        self.timer = timer or DeviceTimer()
        self.progress = progress or ProgressClock()
        self._inputs: StepInputs | None = None
        self._pending = NOTHING_PENDING

    @property
    def inputs(self) -> StepInputs:
        """The inputs of the running forward."""
        assert self._inputs is not None, "no forward is running"
        return self._inputs

    def defer(self, **parts: Any) -> None:
        """Leave parts of `PendingHeads` to the attention of the layer that runs, each once."""
        assert all(getattr(self._pending, name) is None for name in parts), (
            "no attention took what a layer left to it"
        )
        self._pending = replace(self._pending, **parts)

    def take_pending(self) -> PendingHeads:
        """Return what the layer that runs has deferred, and forget it."""
        pending, self._pending = self._pending, NOTHING_PENDING
        return pending

    @contextmanager
    def run(self, inputs: StepInputs) -> Iterator[None]:
        """Route attention layers to the backend for one forward, in this thread."""
        self.backend.begin(inputs)
        with self._running(inputs):
            yield

    @contextmanager
    def replay(self, inputs: StepInputs) -> Iterator[None]:
        """Prepare a captured forward of decodes, which runs in this context."""
        self.backend.stage(inputs)
        with self._running(inputs):
            yield

    @contextmanager
    def _running(self, inputs: StepInputs) -> Iterator[None]:
        assert self._inputs is None, "forwards of one model do not nest"
        self._inputs = inputs
        self.recurrence.begin(inputs)
        token = _running.set(self)
        try:
            with self.timer.measure():
                yield
            assert self._pending is NOTHING_PENDING, "no attention took what the last layer left to it"
        finally:
            _running.reset(token)
            self._inputs, self._pending = None, NOTHING_PENDING
            self.backend.end()
            self.recurrence.end()


def running_forward() -> ForwardContext:
    """Return the context of the innermost forward of this thread."""
    context = _running.get()
    assert context is not None, "attention outside of a forward"
    return context


def paged_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    is_causal: bool | None = None,
    alibi: Tensor | None = None,
    relative_bias: Tensor | None = None,
    chunk_size: int | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Implement transformers' attention interface: [1, heads, T, dim] in, [1, T, heads, dim] out.

    chunk_size: a token sees only those since the last multiple of this number.

    Raises UnsupportedModelError for options that would change the result and are not supported.
    """
    context = running_forward()
    context.progress.tick()
    refuse_unknown(module, attention_mask, options)
    causal = is_causal if is_causal is not None else getattr(module, "is_causal", True)
    layer = getattr(module, "layer_idx", None)
    if layer is None and causal:
        raise UnsupportedModelError(
            f"{type(module).__name__} has no layer_idx, which identifies a layer's KV cache"
        )
    window = Window(chunk_size, chunked=True) if chunk_size else None
    if sliding_window:
        window = Window(sliding_window)
    if relative_bias is not None and (causal or window or alibi is not None):
        raise UnsupportedModelError(
            f"{type(module).__name__} adds a relative bias, which is supported for encoders without windows and ALiBi"
        )
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    scoring = Scoring(scale, window, softcap, s_aux, alibi, causal, relative_bias)
    query, key, value = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
    heads = Heads(query, key, value, context.take_pending())
    return context.backend.attend(layer, heads, scoring).unsqueeze(0), None


def refuse_unknown(module: nn.Module, mask: Tensor | None, options: dict[str, Any]) -> None:
    """Raise UnsupportedModelError for a mask, and for any option that might change the result."""
    if mask is not None:
        raise UnsupportedModelError(f"{type(module).__name__} passes its own attention mask")
    refuse_options(f"{type(module).__name__} passes", options, HARMLESS_TO_ATTENTION)


def refuse_options(passed: str, options: Mapping[str, Any], harmless: Collection[str] = HARMLESS) -> None:
    """Raise UnsupportedModelError for an option that might change the result. passed: the error's beginning."""
    for name, option in options.items():
        if option is not None and name not in harmless:
            raise UnsupportedModelError(f"{passed} the option {name}, which is not supported")


AttentionInterface.register(IMPLEMENTATION, paged_attention)
