"""Multi-token prediction (DeepSeek-V3, arXiv 2412.19437, 2.2): one more decoder layer, over states and next tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from engine_server.modeling.drafting.draft_head import DraftHead, decoder_layers
from engine_server.modeling.layers.weight_layer import original_class


@dataclass(frozen=True)
class MtpLayout:
    """The names of a module's tensors in the files of its target, without `.weight`."""

    # The start of all names; {} is the number of the target's decoder layers.
    prefix: str
    embedding_norm: str
    hidden_norm: str
    projection: str
    norm: str
    # The start of the decoder layer's names after the prefix.
    layer: str
    # Copies of the target's own tensors.
    shared: tuple[str, ...] = ()
    # The projection takes the hidden state before the embedding.
    hidden_first: bool = False

    def start(self, num_layers: int) -> str:
        """Return the start of the names of all tensors of the first module."""
        return self.prefix.format(num_layers)

    def own_name(self, name: str) -> str | None:
        """Return the name in `MtpModule` of a tensor, given that after the prefix; None for one that is not used."""
        for part in ("embedding_norm", "hidden_norm", "projection", "norm"):
            if name.startswith(f"{getattr(self, part)}."):
                return part + name.removeprefix(getattr(self, part))
        if name.startswith(self.layer) and not name.startswith(self.shared):
            return "layer." + name.removeprefix(self.layer)
        return None

    def published_name(self, own: str) -> str:
        """Return the name after the prefix of a tensor of `MtpModule`."""
        part, _, rest = own.partition(".")
        return self.layer + rest if part == "layer" else f"{getattr(self, part)}.{rest}"


LAYOUTS = {
    # DeepSeek V3 and R1, GLM 4.5
    "DeepSeek": MtpLayout(
        "model.layers.{}.", "enorm", "hnorm", "eh_proj", "shared_head.norm", "",
        shared=("embed_tokens.", "shared_head.head."),
    ),
    # MiMo
    "MiMo": MtpLayout(
        "model.mtp_layers.0.", "token_layernorm", "hidden_layernorm", "input_proj", "final_layernorm", "",
        hidden_first=True,
    ),
    # Qwen3-Next, Qwen3.5
    "Qwen": MtpLayout("mtp.", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "fc", "norm", "layers.0."),
}  # fmt: skip


class MtpModule(PreTrainedModel):
    """The weights of a multi-token prediction module.

    config: that of the target with one more decoder layer, the module's.
    """

    # The target's class of decoder layers.
    layer_class: type[nn.Module]
    hidden_first: bool

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        hidden = config.hidden_size
        self.layer = self.layer_class(config, config.num_hidden_layers - 1)
        norm: Any = type(self.layer.input_layernorm)
        self.embedding_norm = norm(hidden, eps=config.rms_norm_eps)
        self.hidden_norm = norm(hidden, eps=config.rms_norm_eps)
        self.projection = nn.Linear(2 * hidden, hidden, bias=False)
        self.norm = norm(hidden, eps=config.rms_norm_eps)
        self.post_init()  # type: ignore[no-untyped-call]

    def get_input_embeddings(self) -> nn.Module | None:  # type: ignore[override]
        return None

    def forward(
        self, embeds: Tensor, hidden: Tensor, position_ids: Tensor, rotations: tuple[Tensor, Tensor]
    ) -> Tensor:
        """Return the states [1, T, hidden] after the last norm, of embeddings and states [1, T, hidden]."""
        halves = [self.embedding_norm(embeds), self.hidden_norm(hidden)]
        if self.hidden_first:
            halves.reverse()
        projected = self.projection(torch.cat(halves, -1))
        output = self.layer(
            projected, attention_mask=None, position_ids=position_ids, position_embeddings=rotations
        )
        states: Tensor = self.norm(output)
        return states


def model_class(target: PreTrainedModel, layout: MtpLayout) -> type[MtpModule]:
    """Return the class of a target's module, which loads weights as the target's architecture does."""
    base = next(
        kind
        for kind in reversed(type(target).__mro__)
        if issubclass(kind, PreTrainedModel) and kind is not PreTrainedModel
    )
    names = {
        "__module__": base.__module__,
        "layer_class": original_class(decoder_layers(target)[-1]),
        "hidden_first": layout.hidden_first,
    }
    return type(MtpModule.__name__, (MtpModule, base), names)


class MtpHead(DraftHead):
    """A multi-token prediction module bound to its target, whose embedding, rope and head it uses."""

    module: MtpModule

    def __init__(self, module: MtpModule, target: Any) -> None:
        super().__init__(module, target, target.get_input_embeddings())
        self._rope = target.get_decoder().rotary_emb
        self._head = target.get_output_embeddings()

    def prepare(self, states: Tensor, auxiliary: Sequence[Tensor]) -> Tensor:
        return states

    def states(self, token_ids: Tensor, positions: Tensor, hidden: Tensor) -> Tensor:
        hidden, position_ids = hidden[None], positions[None]
        rotations = self._rope(hidden, position_ids)
        states: Tensor = self.module(self._embedding(token_ids[None]), hidden, position_ids, rotations)[0]
        return states

    def logits(self, states: Tensor) -> Tensor:
        logits: Tensor = self._head(states)
        return logits
