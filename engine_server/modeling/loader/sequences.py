"""The proof that a recurrent model keeps the sequences of a flat batch apart, and continues each where it was cut."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from engine_server.modeling.attention.hook import ForwardContext
from engine_server.modeling.attention.interface import StepInputs, UnsupportedModelError
from engine_server.modeling.attention.states import StateCache, StepRecurrence
from engine_server.modeling.attention.torch_backend import TorchAttention
from engine_server.modeling.cache.layout import lay_out
from engine_server.modeling.loader.backbone import backbone
from engine_server.modeling.loader.probe import Probe
from engine_server.modeling.loader.refusal import refused_by_name
from engine_server.modeling.platform.interface import Platform

# Two prompts, which the flat batch cuts where no function of blocks ends.
PROMPTS = ([5, 9, 3, 7, 2, 11, 4], [8, 1, 6, 10, 12])
CUT = 3
BLOCK_SIZE = 16

# What each module got and returned, in the order in which the modules returned: its name, and [T, ...] of both.
Trace = list[tuple[str, Tensor, Tensor]]


@torch.inference_mode()
def check_sequences(copy: PreTrainedModel, platform: Platform) -> None:
    """Raise UnsupportedModelError if a recurrent model's tokens depend on another sequence, or on a prompt's cuts.

    The error names the class of the first module whose outputs differ although its inputs agree. copy: with our
    attention and recurrences.
    """
    model = backbone(nn.Module.float(deepcopy(copy)))
    sites, seen = StepRecurrence(), Probe()
    alone = ForwardContext(seen, recurrence=sites)
    with refused_by_name(type(copy).__name__):
        expected = [traced(model, alone, [prompt], [0], platform) for prompt in PROMPTS]
        layers = [seen.shapes.get(layer) for layer in range(copy.config.get_text_config().num_hidden_layers)]
        layout = lay_out(layers, longest=BLOCK_SIZE)
        sizes = [len(PROMPTS)] * layout.num_pools
        attention = TorchAttention(layout, sizes, BLOCK_SIZE, torch.float32, platform)
        states = StateCache(sites.shapes, len(PROMPTS), 0, BLOCK_SIZE, platform.zeros)
        context = ForwardContext(attention, recurrence=states)
        chunks = [
            traced(model, context, [prompt[:CUT] for prompt in PROMPTS], [0, 0], platform),
            traced(model, context, [prompt[CUT:] for prompt in PROMPTS], [CUT, CUT], platform),
        ]
    compare(type(copy).__name__, expected, chunks)


def traced(
    model: Any,
    context: ForwardContext,
    prompts: Sequence[list[int]],
    firsts: Sequence[int],
    platform: Platform,
) -> Trace:
    """Run some prompts' tokens, which begin at the positions `firsts`, and return what each module did."""
    lengths = [len(prompt) for prompt in prompts]
    ends = [first + length for first, length in zip(firsts, lengths, strict=True)]
    kinds = len(context.backend.layout.specs)
    rows = np.arange(len(prompts))
    step = StepInputs.of(rows, lengths, ends, kinds)
    tables = np.arange(len(prompts), dtype=np.int32)[:, None].repeat(BLOCK_SIZE, 1)
    step.place(np.stack([tables] * max(kinds, 1)), BLOCK_SIZE)
    tokens = torch.tensor([token for prompt in prompts for token in prompt], device=platform.device)
    positions = torch.from_numpy(step.positions.copy()).to(platform.device)
    with recorded(model) as trace, context.run(step._replace(tables=[tables] * (kinds + 1))):
        model(input_ids=tokens[None], position_ids=positions[None], use_cache=False)
    return trace


@contextmanager
def recorded(model: nn.Module) -> Iterator[Trace]:
    """Record what each module of a model gets and returns for a flat batch."""
    trace: Trace = []

    def record(module: nn.Module, inputs: tuple[Any, ...], options: dict[str, Any], output: Any) -> None:
        given = next((one for one in (*inputs, *options.values()) if isinstance(one, Tensor)), None)
        made = (
            output[0] if isinstance(output, (tuple, list)) else getattr(output, "last_hidden_state", output)
        )
        if given is not None and isinstance(made, Tensor) and made.dim() > 1 and len(made) == 1:
            trace.append((type(module).__name__, given[0].clone(), made[0].clone()))

    hooks = [module.register_forward_hook(record, with_kwargs=True) for module in model.modules()]
    try:
        yield trace
    finally:
        for hook in hooks:
            hook.remove()


def compare(name: str, alone: Sequence[Trace], chunks: Sequence[Trace]) -> None:
    """Raise UnsupportedModelError for the first module that computed other results from the same inputs.

    name: of the model; alone: the trace of each prompt; chunks: that of the flat batch up to the cut, and after it.
    """
    # By prompt and chunk: the tokens within the prompt, and within the chunk.
    places, starts = [], [0, 0]
    for prompt in PROMPTS:
        own = [slice(0, CUT), slice(CUT, len(prompt))]
        lengths = [CUT, len(prompt) - CUT]
        places.append(
            [(own[chunk], slice(starts[chunk], starts[chunk] + lengths[chunk])) for chunk in (0, 1)]
        )
        starts = [start + length for start, length in zip(starts, lengths, strict=True)]
    for calls in zip(*alone, *chunks, strict=True):
        for number, prompt in enumerate(PROMPTS):
            kind, given, made = calls[number]
            if len(given) != len(prompt) or len(made) != len(prompt):
                continue  # not one for each token
            pairs = [
                (flat[1][within], given[own], flat[2][within], made[own])
                for flat, (own, within) in zip(calls[len(PROMPTS) :], places[number], strict=True)
            ]
            same_inputs = all(agree(found, expected) for found, expected, _, _ in pairs)
            if same_inputs and not all(agree(found, expected) for _, _, found, expected in pairs):
                raise UnsupportedModelError(
                    f"{kind} of {name} computes other results for a sequence beside others, or in parts, than alone; "
                    "it would be computed wrongly"
                )


def agree(found: Tensor, expected: Tensor) -> bool:
    """Return True if two tensors are the same but for the order of sums."""
    if found.shape != expected.shape or not found.is_floating_point():
        return True
    scale = expected.float().std().nan_to_num(0.0).item()
    return torch.allclose(found, expected, rtol=1e-3, atol=1e-3 * scale + 1e-6)
