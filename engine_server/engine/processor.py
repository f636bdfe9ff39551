"""From what a caller gives to a checked request: every error that can be known is raised here."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from engine_server.engine.config import ModelConfig
from engine_server.engine.errors import InvalidRequestError
from engine_server.engine.inputs import PromptType
from engine_server.engine.messages import AddRequest
from engine_server.engine.sampling_params import SamplingParams

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Processor:
    """Validates and tokenises. Raises InvalidRequestError."""

    def __init__(self, config: ModelConfig, tokenizer: PreTrainedTokenizerBase | None) -> None:
        self.config = config
        self.tokenizer = tokenizer
        self._seeds = random.Random(config.seed)

    def process(
        self, request_id: str, prompt: PromptType, params: SamplingParams, arrival: float | None = None
    ) -> tuple[AddRequest, str | None]:
        """The core's request, and the prompt's text where it is known."""
        if not isinstance(params, SamplingParams):
            raise InvalidRequestError(
                f"params is a {type(params).__name__}; it takes SamplingParams", "params"
            )
        text, token_ids = self._tokens(prompt)
        room = self._room(token_ids)
        if self.tokenizer is None and params.detokenize:
            raise InvalidRequestError("the engine has no tokenizer; ask with detokenize=False", "detokenize")
        beyond = [token for token in params.stop_token_ids or () if token >= self.config.vocab_size]
        if beyond:
            raise InvalidRequestError(
                f"stop_token_ids has {beyond[0]}; the vocabulary ends at {self.config.vocab_size - 1}",
                "stop_token_ids",
            )
        params = msgspec.structs.replace(
            params, seed=self._seeds.getrandbits(64) if params.seed is None else params.seed
        )
        return (
            AddRequest(
                request_id=request_id,
                prompt_token_ids=token_ids,
                params=params,
                max_tokens=room if params.max_tokens is None else min(params.max_tokens, room),
                arrival=time.monotonic() if arrival is None else arrival,
            ),
            text,
        )

    def _tokens(self, prompt: PromptType) -> tuple[str | None, list[int]]:
        if isinstance(prompt, str):
            return prompt, self._tokenize(prompt)
        if not isinstance(prompt, Mapping):
            raise InvalidRequestError(
                f"the prompt is a {type(prompt).__name__}; it takes text, or a mapping with prompt or prompt_token_ids",
                "prompt",
            )
        if "prompt_token_ids" in prompt:
            token_ids = list(prompt["prompt_token_ids"])  # type: ignore[typeddict-item]
            self._room(token_ids)  # before each of what may be millions is looked at
            for token in token_ids:
                if type(token) is not int or not 0 <= token < self.config.vocab_size:
                    raise InvalidRequestError(
                        f"the prompt has token {token!r}; tokens are integers from 0 to {self.config.vocab_size - 1}",
                        "prompt",
                    )
            return prompt.get("prompt"), token_ids
        text = prompt.get("prompt")
        if not isinstance(text, str):
            raise InvalidRequestError("the prompt has neither prompt nor prompt_token_ids", "prompt")
        return text, self._tokenize(text)

    def _room(self, token_ids: list[int]) -> int:
        """How many tokens may follow the prompt, at least one."""
        if not token_ids:
            raise InvalidRequestError("the prompt is empty; it takes at least one token", "prompt")
        room = self.config.max_model_len - len(token_ids)
        if room < 1:
            raise InvalidRequestError(
                f"the prompt has {len(token_ids)} tokens; with at least one new token it must fit the context of "
                f"{self.config.max_model_len}",
                "prompt",
            )
        return room

    def _tokenize(self, text: str) -> list[int]:
        if self.tokenizer is None:
            raise InvalidRequestError("the engine has no tokenizer; give prompt_token_ids", "prompt")
        token_ids: list[int] = self.tokenizer.encode(text)
        return token_ids
