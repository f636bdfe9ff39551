"""The model's settings."""

from typing import Any, Literal

import msgspec

from engine_server.config.pooling import PoolingConfig
from engine_server.config.start_facts import TEXT_ALONE
from engine_server.contract.base.bounds import PICTURES

# Before or after the logits processors, as logits or as log-probabilities.
LogprobsMode = Literal["raw_logits", "raw_logprobs", "processed_logits", "processed_logprobs"]


class SamplingDefaults(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Sampling parameters of a model's generation_config.json; None: not set there."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    max_tokens: int | None = None
    # Tokens that are never generated, each as a word of its own.
    bad_words_token_ids: list[list[int]] | None = None


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The model, its limits, and how it is loaded and sampled."""

    # The URI as the user gave it.
    model: str
    # The local folder that it resolved to.
    path: str
    # A local folder or a hub's name.
    tokenizer: str
    served_model_name: list[str]
    # "float32", "bfloat16", "float16", or "auto": the weights' own.
    dtype: str
    # Maximum length of prompt and output together, in tokens.
    max_model_len: int
    vocab_size: int
    # The tokens that end an answer; those of the tokenizer and its chat template are added once it is loaded.
    eos_token_ids: list[int]
    seed: int
    # Lower max_model_len to the KV cache's capacity, instead of refusing to start.
    fit_max_model_len: bool = False
    # Logits are bitwise independent of batch composition. None: if that costs nothing, until the core has started.
    batch_invariant: bool | None = None
    skip_tokenizer_init: bool = False
    # Of the tokens of prompts' segments; 0: none are kept.
    tokenizer_cache_bytes: int = 0
    # Capture no CUDA graphs.
    enforce_eager: bool = False
    # Import paths of the logits processors that requests may name.
    logits_processors: list[str] = []
    # None: the model generates.
    pooling: PoolingConfig | None = None
    # Maximum number of log-probabilities that a request may ask for; -1: the whole vocabulary.
    max_logprobs: int = 20
    logprobs_mode: LogprobsMode = "raw_logprobs"
    # Size of one token's state; 0: not known.
    hidden_size: int = 0
    # Size of one token's prompt embedding; None: prompts of embeddings are refused.
    prompt_embeds_size: int | None = None
    # Load no encoder of pictures.
    language_model_only: bool = False
    # Why the model takes no pictures, as far as that is known before it is loaded; empty if it takes them.
    refuses_pictures: str = TEXT_ALONE
    # In the prompts of one request.
    max_pictures: int = PICTURES.limit
    # Of the model's processor of pictures.
    picture_options: dict[str, Any] = {}
    # Settings that replace those of config.json.
    hf_overrides: dict[str, Any] = {}
    # Run Python code from the model's folder.
    trust_remote_code: bool = False
    sampling_defaults: SamplingDefaults = SamplingDefaults()
    # The tokens that end an answer, by the file or the setting that names them.
    eos_sources: dict[str, list[int]] = {}

    @property
    def runner(self) -> str:
        return "generate" if self.pooling is None else "pooling"

    @property
    def supported_tasks(self) -> tuple[str, ...]:
        return ("generate",) if self.pooling is None else self.pooling.tasks

    @property
    def is_encoder(self) -> bool:
        return self.pooling is not None and self.pooling.encoder

    def get_vocab_size(self) -> int:
        """Return the size of the vocabulary."""
        return self.vocab_size

    def get_diff_sampling_param(self) -> dict[str, Any]:
        """Return the sampling parameters in the model's generation_config.json, by name."""
        given = msgspec.structs.asdict(self.sampling_defaults)
        return {name: value for name, value in given.items() if value is not None}
