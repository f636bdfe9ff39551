"""The model's settings."""

from typing import Literal

import msgspec

# The first token's hidden state, the last token's, or the mean of all.
Pooling = Literal["CLS", "LAST", "MEAN"]
# Before or after the logits processors, as logits or as log-probabilities.
LogprobsMode = Literal["raw_logits", "raw_logprobs", "processed_logits", "processed_logprobs"]
Activation = Literal["identity", "sigmoid", "softmax"]


class PoolingConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How a pooling model makes one vector of a prompt's hidden states."""

    pooling: Pooling
    normalize: bool  # to length 1, unless a request says otherwise
    encoder: bool  # attention both ways, over the whole prompt at once: no KV cache, no chunks
    num_labels: int | None  # of a classifier; None: the vector is an embedding
    activation: Activation  # of a classifier's scores
    dimensions: list[int]  # to which an embedding may be cut
    num_token_types: int  # of texts in one prompt that the model tells apart; 0: it doesn't


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    model: str  # the URI as it was given
    path: str  # the local folder that it resolved to
    tokenizer: str  # a local folder or a hub's name
    served_model_name: list[str]
    dtype: str  # "float32", "bfloat16", "float16" or "auto": as the weights are
    max_model_len: int  # prompt and output together, in tokens
    vocab_size: int
    eos_token_ids: list[int]
    seed: int
    batch_invariant: bool = False  # a token's logits have the same bits whatever is computed beside it
    skip_tokenizer_init: bool = False
    enforce_eager: bool = False  # no CUDA graphs
    logits_processors: list[str] = []  # import paths of those that requests may name
    pooling: PoolingConfig | None = None  # None: the model generates
    # The most log-probabilities a request may ask for; -1: the whole vocabulary.
    max_logprobs: int = 20
    logprobs_mode: LogprobsMode = "raw_logprobs"
    prompt_embeds_size: int | None = None  # of an embedding that may stand for a token; None: none may

    @property
    def runner(self) -> str:
        return "generate" if self.pooling is None else "pooling"

    @property
    def is_encoder(self) -> bool:
        return self.pooling is not None and self.pooling.encoder
