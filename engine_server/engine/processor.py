"""From what a caller gives to a checked request: every error that can be known is raised here."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from engine_server.engine.config import ModelConfig
from engine_server.engine.errors import InvalidRequestError
from engine_server.engine.messages import AddRequest, RawTensor
from engine_server.engine.pooling_params import PoolingParams
from engine_server.engine.sampling_params import RequestOutputKind, SamplingParams

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Processor:
    """Validates and tokenises. Raises InvalidRequestError."""

    def __init__(self, config: ModelConfig, tokenizer: PreTrainedTokenizerBase | None) -> None:
        self.config = config
        self.tokenizer = tokenizer
        self._seeds = random.Random(config.seed)

    def process(
        self,
        request_id: str,
        prompt: Any,
        params: SamplingParams | PoolingParams,
        arrival: float | None = None,
    ) -> tuple[AddRequest, str | None]:
        """The core's request, and the prompt's text where it is known. `prompt` should be a PromptType."""
        pooling = self.config.pooling
        if not isinstance(params, SamplingParams if pooling is None else PoolingParams):
            does = (
                "generates, and takes SamplingParams" if pooling is None else "pools, and takes PoolingParams"
            )
            raise InvalidRequestError(f"params is a {type(params).__name__}; this engine {does}", "params")
        arrival = time.monotonic() if arrival is None else arrival
        embeds = self._embeds(prompt)
        salt = prompt.get("cache_salt") if isinstance(prompt, Mapping) else None
        if salt is not None and not isinstance(salt, str):
            raise InvalidRequestError(f"cache_salt is {salt!r}; it takes text", "cache_salt")
        if embeds is not None:
            prompt = {**prompt, "prompt_token_ids": [0] * embeds.shape[0]}
            if params.truncate_prompt_tokens or getattr(params, "prompt_logprobs", None) is not None:
                raise InvalidRequestError(
                    "prompt_embeds has no tokens to cut off or to report", "prompt_embeds"
                )
        if isinstance(params, PoolingParams):
            return self._pooling_request(request_id, prompt, params, arrival, embeds)
        text, token_ids = self.tokens(prompt, params.truncate_prompt_tokens)
        room = self._room(token_ids)
        resumed = self._resumed(prompt, params, room)
        if self.tokenizer is None and params.detokenize:
            raise InvalidRequestError("the engine has no tokenizer; ask with detokenize=False", "detokenize")
        self._check_vocabulary(params)
        params = msgspec.structs.replace(
            params,
            seed=self._seeds.getrandbits(64) if params.seed is None else params.seed,
            bad_words_token_ids=self._bad_words(params),
        )
        return (
            AddRequest(
                request_id=request_id,
                prompt_token_ids=token_ids + resumed,
                params=params,
                max_tokens=room if params.max_tokens is None else min(params.max_tokens, room),
                arrival=arrival,
                num_resumed=len(resumed),
                cache_salt=salt,
                prompt_embeds=embeds,
            ),
            text,
        )

    def _pooling_request(
        self, request_id: str, prompt: Any, params: PoolingParams, arrival: float, embeds: RawTensor | None
    ) -> tuple[AddRequest, str | None]:
        assert self.config.pooling is not None
        params = params.resolve(self.config.pooling)
        keep = (
            self.config.max_model_len
            if params.truncate_prompt_tokens == -1
            else params.truncate_prompt_tokens
        )
        text = (
            prompt.get("prompt")
            if isinstance(prompt, Mapping) and "prompt_token_ids" not in prompt
            else prompt
        )
        if keep is not None and isinstance(text, str) and self.tokenizer is not None:
            # The tokenizer knows what begins and ends every text, and leaves it on.
            token_ids = self.tokenizer.encode(text, truncation=True, max_length=keep)
            prompt = {"prompt_token_ids": token_ids, "prompt": text}
        text, token_ids = self.tokens(prompt, keep)
        self._room(token_ids)
        kinds = range(self.config.pooling.num_token_types)
        types = prompt.get("token_type_ids") if kinds and isinstance(prompt, Mapping) else None
        if types and (len(types) != len(token_ids) or not all(kind in kinds for kind in types)):
            raise InvalidRequestError(
                f"token_type_ids takes an integer from 0 to {kinds[-1]} for each token", "token_type_ids"
            )
        request = AddRequest(
            request_id=request_id,
            prompt_token_ids=token_ids,
            params=SamplingParams(
                max_tokens=None, detokenize=False, output_kind=RequestOutputKind.FINAL_ONLY
            ),
            max_tokens=0,
            arrival=arrival,
            pooling=params,
            token_type_ids=types,
            prompt_embeds=embeds,
        )
        return request, text

    def _embeds(self, prompt: Any) -> RawTensor | None:
        """What stands for the prompt's tokens, where it came as embeddings."""
        if not isinstance(prompt, Mapping) or "prompt_embeds" not in prompt:
            return None
        import torch  # is there already, where somebody has a tensor

        size, embeds = self.config.prompt_embeds_size, prompt["prompt_embeds"]
        if size is None:
            raise InvalidRequestError(
                "prompt_embeds needs an engine with enable_prompt_embeds", "prompt_embeds"
            )
        if not (
            isinstance(embeds, torch.Tensor) and embeds.is_floating_point() and embeds.shape[1:] == (size,)
        ):
            raise InvalidRequestError(
                f"prompt_embeds takes a tensor of floats [tokens, {size}]", "prompt_embeds"
            )
        return RawTensor.of(embeds)

    def _resumed(self, prompt: Any, params: SamplingParams, room: int) -> list[int]:
        """The tokens that the request has produced already."""
        resumed = [] if isinstance(prompt, str) else list(prompt.get("resume_token_ids") or ())
        if resumed and params.num_children > 1:
            raise InvalidRequestError("resume_token_ids continues one completion; n must be 1", "n")
        if len(resumed) > room:
            raise InvalidRequestError(
                f"resume_token_ids has {len(resumed)} tokens; {room} fit behind the prompt",
                "resume_token_ids",
            )
        self._check_tokens(resumed, "resume_token_ids")
        return resumed

    def _check_vocabulary(self, params: SamplingParams) -> None:
        for name in ("stop_token_ids", "allowed_token_ids", "logit_bias"):
            self._check_tokens(getattr(params, name) or (), name)
        for token_ids in params.bad_words_token_ids or ():
            self._check_tokens(token_ids, "bad_words_token_ids")
        for path in params.logits_processors or ():
            if path not in self.config.logits_processors:
                raise InvalidRequestError(
                    f"logits_processors has {path!r}; the engine was started with "
                    f"{', '.join(self.config.logits_processors) or 'none'}",
                    "logits_processors",
                )

    def _check_tokens(self, token_ids: Iterable[object], name: str) -> None:
        for token in token_ids:
            if type(token) is not int or not 0 <= token < self.config.vocab_size:
                raise InvalidRequestError(
                    f"{name} has token {token!r}; tokens are integers from 0 to {self.config.vocab_size - 1}",
                    name,
                )

    def _bad_words(self, params: SamplingParams) -> list[list[int]] | None:
        """The tokens of each word, where it begins a word and where it doesn't."""
        if not params.bad_words:
            return params.bad_words_token_ids
        if self.tokenizer is None:
            raise InvalidRequestError("the engine has no tokenizer; give bad_words_token_ids", "bad_words")
        texts = [prefix + word.lstrip() for word in params.bad_words for prefix in ("", " ")]
        encoded = (self.tokenizer.encode(text, add_special_tokens=False) for text in texts)
        return [token_ids for token_ids in encoded if token_ids]

    def tokens(self, prompt: Any, keep: int | None = None) -> tuple[str | None, list[int]]:
        """The prompt's text where it is known, and the last `keep` of its tokens."""
        last = (
            slice(None) if keep is None else slice(-keep if keep > 0 else 1 - self.config.max_model_len, None)
        )
        if isinstance(prompt, str):
            return prompt, self._tokenize(prompt)[last]
        if not isinstance(prompt, Mapping):
            raise InvalidRequestError(
                f"the prompt is a {type(prompt).__name__}; it takes text, or a mapping with prompt or prompt_token_ids",
                "prompt",
            )
        if "prompt_token_ids" in prompt:
            token_ids = list(prompt["prompt_token_ids"][last])
            self._room(token_ids)  # before each of what may be millions is looked at
            self._check_tokens(token_ids, "prompt")
            return prompt.get("prompt"), token_ids
        text = prompt.get("prompt")
        if not isinstance(text, str):
            raise InvalidRequestError("the prompt has neither prompt nor prompt_token_ids", "prompt")
        return text, self._tokenize(text)[last]

    def _room(self, token_ids: list[int]) -> int:
        """How many tokens may follow the prompt, at least one."""
        if not token_ids:
            raise InvalidRequestError("the prompt is empty; it takes at least one token", "prompt")
        pools = self.config.pooling is not None
        room = self.config.max_model_len - len(token_ids) + pools
        if room < 1:
            raise InvalidRequestError(
                f"the prompt has {len(token_ids)} tokens; {'' if pools else 'with at least one new token '}"
                f"it must fit the context of {self.config.max_model_len}",
                "prompt",
            )
        return room

    def _tokenize(self, text: str) -> list[int]:
        if self.tokenizer is None:
            raise InvalidRequestError("the engine has no tokenizer; give prompt_token_ids", "prompt")
        token_ids: list[int] = self.tokenizer.encode(text)
        return token_ids
