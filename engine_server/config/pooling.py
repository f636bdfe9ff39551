"""The settings of a model that pools."""

from typing import Any, Literal

import msgspec

# The first token's hidden state, the last token's, or the mean of all.
Pooling = Literal["CLS", "LAST", "MEAN"]
Activation = Literal["identity", "sigmoid", "softmax"]
# Classes of torch.nn.
DenseActivation = Literal[
    "Identity", "Tanh", "Sigmoid", "LogSigmoid", "Hardtanh", "Softsign", "Softplus", "ReLU", "ReLU6", "LeakyReLU",
    "ELU", "SELU", "GELU", "SiLU", "Mish",
]  # fmt: skip


class DenseModule(msgspec.Struct, frozen=True, kw_only=True, tag="dense"):
    """A linear layer after pooling, with an activation."""

    # Its folder in the model's.
    path: str
    in_features: int
    out_features: int
    bias: bool
    activation: DenseActivation
    # The layer's input is added to its output, by a second layer if their sizes differ.
    residual: bool


class NormalizeModule(msgspec.Struct, frozen=True, tag="normalize"):
    """A scaling to length 1 before a linear layer."""


class PoolingConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The reduction of a prompt's hidden states to one vector."""

    pooling: Pooling
    # Layers after pooling, in their order.
    modules: list[DenseModule | NormalizeModule] = []
    # Scale embeddings to length 1, unless a request overrides it.
    normalize: bool
    # Bidirectional attention over the whole prompt: no KV cache, no chunks.
    encoder: bool
    # Labels of a classifier; None: the vector is an embedding.
    num_labels: int | None
    # A classifier's names of its labels, in the order of its scores.
    labels: list[str]
    # Activation of a classifier's labels.
    activation: Activation
    # Activation of the scores of pairs of texts.
    score_activation: Activation
    # Lengths to which an embedding may be cut.
    dimensions: list[int]
    # Length to which embeddings are cut by default; None: they are whole.
    default_dimensions: int | None = None
    # Number of token types, which distinguish the texts of one prompt; 0: none.
    num_token_types: int
    # Texts that are put before a text to embed, by their names, and the name of the default; None: no default.
    prompts: dict[str, str] = {}
    default_prompt: str | None = None
    # Texts to embed are read in lower case, with their prompts.
    lower_case: bool = False
    # The negative and the positive answer of a language model that scores by their logits' difference, or the positive
    # one alone; empty: another model.
    score_tokens: list[int] = []
    # Instruction that such a model's chat template gets by default; None: the template's own.
    instruction: str | None = None
    # Arguments of that template besides the texts.
    template_arguments: dict[str, Any] = {}

    def as_read(self, text: str) -> str:
        """Return a text to embed, with its prompt, as the model reads it."""
        return text.lower() if self.lower_case else text

    @property
    def tasks(self) -> tuple[str, ...]:
        """Return the tasks that a request may name, the default first."""
        if self.num_labels is None:
            return ("embed", "encode")
        return ("classify", "encode", "score") if self.num_labels == 1 else ("classify", "encode")
