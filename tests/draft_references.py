"""Draft heads as the formulas of their papers, in float32 over whole prefixes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from draft_checkpoints import EAGLE3, HIDDEN, MTP, PARTS, TARGET_LAYERS, VOCABULARY, WEIGHTS
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

# Returns the states, before those that logits are computed from, of embeddings and states [T, hidden].
Module = Callable[[Tensor, Tensor], Tensor]


class Reference(NamedTuple):
    """A draft head as formulas in float32, and its target in transformers."""

    target: PreTrainedModel
    # The states [T, hidden] from which a chain starts, of all hidden states of the target: its last ones come last.
    prepare: Callable[[tuple[Tensor, ...]], Tensor]
    embedding: Tensor
    states: Module
    logits: Callable[[Tensor], Tensor]


def rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def rotations(count: int, dim: int, theta: float = 10000.0) -> tuple[Tensor, Tensor]:
    """Return cosines and sines [tokens, dim / 2]."""
    angles = torch.arange(count)[:, None] / theta ** (torch.arange(0, dim, 2) / dim)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, interleaved: bool = False) -> Tensor:
    """Rotate the pairs of dimensions of [tokens, heads, dim] by their position."""
    cos, sin = (part[:, None] for part in rotations(len(x), x.shape[-1]))
    first, second = (x[..., 0::2], x[..., 1::2]) if interleaved else x.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attend causally: [tokens, heads, dim] each, to [tokens, heads * dim]."""
    groups = query.shape[1] // key.shape[1]
    key, value = (part.repeat_interleave(groups, 1) for part in (key, value))
    scores = torch.einsum("qhd,khd->hqk", query, key) * query.shape[-1] ** -0.5
    masked = scores.masked_fill(torch.ones(scores.shape[1:]).triu(1).bool(), -torch.inf)
    return torch.einsum("hqk,khd->qhd", masked.softmax(-1), value).flatten(1)


class Weights:
    """Tensors by name, and the layers of transformers' architectures as formulas of them."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self.tensors = tensors

    def linear(self, name: str, x: Tensor) -> Tensor:
        return F.linear(x, self.tensors[f"{name}.weight"], self.tensors.get(f"{name}.bias"))

    def norm(self, name: str, x: Tensor, eps: float = 1e-6) -> Tensor:
        return rms_norm(x, self.tensors[f"{name}.weight"], eps)

    def gated_mlp(self, name: str, x: Tensor) -> Tensor:
        gate, up = self.linear(f"{name}.gate_proj", x), self.linear(f"{name}.up_proj", x)
        return self.linear(f"{name}.down_proj", F.silu(gate) * up)

    def attention(self, name: str, x: Tensor, dim: int) -> Tensor:
        """Grouped-query attention with rope."""
        query, key, value = (
            self.linear(f"{name}.{part}_proj", x).unflatten(-1, (-1, dim)) for part in ("q", "k", "v")
        )
        return self.linear(f"{name}.o_proj", attend(rotate(query), rotate(key), value))

    def latent_attention(self, name: str, x: Tensor, config: Any) -> Tensor:
        """DeepSeek's attention (arXiv 2405.04434, 2.1) without compression of the cache."""
        plain, rope, heads = config.qk_nope_head_dim, config.qk_rope_head_dim, config.num_attention_heads
        compressed = self.norm(f"{name}.q_a_layernorm", self.linear(f"{name}.q_a_proj", x))
        query = self.linear(f"{name}.q_b_proj", compressed).unflatten(-1, (heads, -1))
        latent, shared = self.linear(f"{name}.kv_a_proj_with_mqa", x).split([config.kv_lora_rank, rope], -1)
        joined = self.linear(f"{name}.kv_b_proj", self.norm(f"{name}.kv_a_layernorm", latent))
        key, value = joined.unflatten(-1, (heads, -1)).split([plain, config.v_head_dim], -1)
        rotated = rotate(shared[:, None], interleaved=True).expand(-1, heads, -1)
        query = torch.cat([query[..., :plain], rotate(query[..., plain:], interleaved=True)], -1)
        return self.linear(f"{name}.o_proj", attend(query, torch.cat([key, rotated], -1), value))

    def experts(self, name: str, x: Tensor, config: Any) -> Tensor:
        """DeepSeek-V3's experts (arXiv 2412.19437, 2.1.2), chosen within the best groups."""
        affinities = self.linear(f"{name}.gate", x).sigmoid()
        biased = affinities + self.tensors[f"{name}.gate.e_score_correction_bias"]
        grouped = biased.unflatten(-1, (config.n_group, -1))
        best = grouped.topk(2).values.sum(-1).topk(config.topk_group).indices
        allowed = torch.zeros(grouped.shape[:-1], dtype=torch.bool).scatter(1, best, True)
        allowed = allowed[..., None].expand_as(grouped).flatten(1)
        chosen = biased.masked_fill(~allowed, -torch.inf).topk(config.num_experts_per_tok).indices
        gates = affinities.gather(1, chosen)
        gates = gates / gates.sum(-1, keepdim=True) * config.routed_scaling_factor
        rows = [
            sum(
                gate * self.gated_mlp(f"{name}.experts.{expert}", row)
                for gate, expert in zip(*pair, strict=True)
            )
            for row, *pair in zip(x, gates, chosen.tolist(), strict=True)
        ]
        return torch.stack(rows) + self.gated_mlp(f"{name}.shared_experts", x)


def eagle3_reference(
    folder: Path, tensors: dict[str, Tensor], layers: tuple[int, ...], norm_before_residual: bool = False
) -> Reference:
    target = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    own, eps = Weights(tensors), EAGLE3["rms_norm_eps"]
    embedding = tensors.get("embed_tokens.weight", target.get_input_embeddings().weight)
    dim = own.tensors["midlayer.self_attn.o_proj.weight"].shape[1] // EAGLE3["num_attention_heads"]

    def states(embeds: Tensor, hidden: Tensor) -> Tensor:
        normed_hidden = own.norm("midlayer.hidden_norm", hidden, eps)
        joined = torch.cat([own.norm("midlayer.input_layernorm", embeds, eps), normed_hidden], -1)
        total = (normed_hidden if norm_before_residual else hidden) + own.attention(
            "midlayer.self_attn", joined, dim
        )
        normed = own.norm("midlayer.post_attention_layernorm", total, eps)
        return total + own.gated_mlp("midlayer.mlp", normed)

    def logits(states: Tensor) -> Tensor:
        drafts = own.linear("lm_head", own.norm("norm", states, eps))
        if "d2t" not in tensors:
            return drafts
        whole = torch.full((len(states), VOCABULARY), -torch.inf)
        for draft, distance in enumerate(tensors["d2t"].tolist()):
            whole[:, draft + distance] = drafts[:, draft]
        return whole

    def prepare(hidden: tuple[Tensor, ...]) -> Tensor:
        return own.linear("fc", torch.cat([hidden[layer + 1] for layer in layers], -1))

    return Reference(target, prepare, embedding, states, logits)


def mtp_reference(folder: Path, tensors: dict[str, Tensor], layout: str) -> Reference:
    target = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    own, config = Weights(tensors), target.config
    start, layer = (name.format(TARGET_LAYERS) for name in MTP[layout][2:])
    embedding_norm, hidden_norm, projection, last_norm = (start + part for part in PARTS[layout])

    def decoder_layer(x: Tensor) -> Tensor:
        normed = own.norm(f"{layer}input_layernorm", x)
        if layout == "deepseek":
            x = x + own.latent_attention(f"{layer}self_attn", normed, config)
            return x + own.experts(f"{layer}mlp", own.norm(f"{layer}post_attention_layernorm", x), config)
        x = x + own.attention(f"{layer}self_attn", normed, HIDDEN // config.num_attention_heads)
        return x + own.gated_mlp(f"{layer}mlp", own.norm(f"{layer}post_attention_layernorm", x))

    def states(embeds: Tensor, hidden: Tensor) -> Tensor:
        halves = [own.norm(embedding_norm, embeds), own.norm(hidden_norm, hidden)]
        if layout == "mimo":
            halves.reverse()
        return own.norm(last_norm, decoder_layer(own.linear(projection, torch.cat(halves, -1))))

    return Reference(
        target, lambda hidden: hidden[-1], tensors["model.embed_tokens.weight"], states,
        lambda states: own.linear("lm_head", states),
    )  # fmt: skip


@torch.inference_mode()
def expected_chain(reference: Reference, prompt: list[int], drafts: list[int]) -> Tensor:
    """Return the logits [drafts, vocabulary] of a chain after a prompt whose last token the target has not seen."""
    output = reference.target(torch.tensor([prompt[:-1]]), output_hidden_states=True)
    hidden = reference.prepare(tuple(state[0] for state in output.hidden_states))
    tokens, rows = prompt[1:], []
    for draft in drafts:
        states = reference.states(reference.embedding[tokens], hidden)
        rows.append(reference.logits(states[-1:]))
        hidden, tokens = torch.cat([hidden, states[-1:]]), [*tokens, draft]
    return torch.cat(rows)


def qwen_reference(folder: Path, tensors: dict[str, Tensor]) -> Reference:
    """Return a reference whose decoder layer and last norm are a model of transformers with one layer."""
    start, layer = MTP["qwen"][2:]
    embedding_norm, hidden_norm, projection, last_norm = (f"{start}{part}.weight" for part in PARTS["qwen"])
    config = json.loads((folder / "config.json").read_text())
    config |= {"num_hidden_layers": 1, "layer_types": ["full_attention"]}
    state = {name.replace(layer, "model.layers.0."): own for name, own in tensors.items() if layer in name}
    state["model.norm.weight"] = tensors[last_norm]
    state |= {name: own for name, own in tensors.items() if "embed_tokens" in name or "lm_head" in name}
    (folder / "layer").mkdir()
    (folder / "layer" / "config.json").write_text(json.dumps(config))
    save_file(state, folder / "layer" / WEIGHTS, {"format": "pt"})
    model = AutoModelForCausalLM.from_pretrained(folder / "layer", dtype=torch.float32)

    def states(embeds: Tensor, hidden: Tensor) -> Tensor:
        halves = [rms_norm(embeds, 1 + tensors[embedding_norm]), rms_norm(hidden, 1 + tensors[hidden_norm])]
        projected = torch.cat(halves, -1) @ tensors[projection].T
        last: Tensor = model.model(inputs_embeds=projected[None]).last_hidden_state[0]
        return last

    target = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return Reference(
        target, lambda hidden: hidden[-1], tensors["model.embed_tokens.weight"], states, model.lm_head
    )
