"""From what a caller gives to a checked request: every error that can be known is raised here."""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from engine_server.config import ModelConfig
from engine_server.requests.errors import InvalidRequestError
from engine_server.requests.messages import AddRequest, RawTensor
from engine_server.requests.pooling_params import PoolingParams
from engine_server.requests.sampling_params import SamplingParams

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
        kind = SamplingParams if self.config.pooling is None else PoolingParams
        if not isinstance(params, kind):
            does = f"{'generates' if kind is SamplingParams else 'pools'}, and takes {kind.__name__}"
            raise InvalidRequestError(f"params is a {type(params).__name__}; this engine {does}", "params")
        prompt, embeds = as_mapping(prompt), None
        if "prompt_embeds" in prompt:
            embeds = self._embeds(prompt["prompt_embeds"], params)
            # Tokens that nobody looks at, and whose blocks only the same embeddings find.
            salt = f"{hashlib.sha256(embeds.data).hexdigest()} {embeds.dtype} {prompt.get('cache_salt')}"
            prompt = {**prompt, "prompt_token_ids": [0] * embeds.shape[0], "cache_salt": salt}
        pooling = None
        if isinstance(params, PoolingParams):
            assert self.config.pooling is not None
            pooling, keep = params.resolve(self.config.pooling), params.truncate_prompt_tokens
            keep = self.config.max_model_len if keep == -1 else keep
            prompt = self._cut(prompt, keep)
            params = SamplingParams(
                max_tokens=None, detokenize=False, output_kind=params.output_kind, truncate_prompt_tokens=keep
            )
        text, token_ids = self.tokens(prompt, params.truncate_prompt_tokens)
        room = self._room(token_ids)
        resumed = self._resumed(prompt, params, room)
        if self.tokenizer is None and params.detokenize:
            raise InvalidRequestError("the engine has no tokenizer; ask with detokenize=False", "detokenize")
        salt = prompt.get("cache_salt")
        if salt is not None and not isinstance(salt, str):
            raise InvalidRequestError(f"cache_salt is {salt!r}; it takes text", "cache_salt")
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
                arrival=time.monotonic() if arrival is None else arrival,
                num_resumed=len(resumed),
                cache_salt=salt,
                pooling=pooling,
                token_type_ids=self._token_types(prompt, len(token_ids)),
                prompt_embeds=embeds,
            ),
            text,
        )

    def _cut(self, prompt: Mapping[str, Any], keep: int | None) -> Mapping[str, Any]:
        """A text as `keep` tokens, by the tokenizer, which leaves on what begins and ends every text."""
        text = prompt.get("prompt")
        if keep is None or self.tokenizer is None or "prompt_token_ids" in prompt or type(text) is not str:
            return prompt
        token_ids = self.tokenizer.encode(text, truncation=True, max_length=keep)
        return {**prompt, "prompt_token_ids": token_ids}

    def _token_types(self, prompt: Mapping[str, Any], count: int) -> list[int] | None:
        """For a model that tells the texts of one prompt apart, each token's."""
        kinds = range(self.config.pooling.num_token_types if self.config.pooling else 0)
        types = prompt.get("token_type_ids") if kinds else None
        if types is not None and not (len(types) == count and all(kind in kinds for kind in types)):
            words = f"token_type_ids takes an integer from 0 to {kinds[-1]} for each token"
            raise InvalidRequestError(words, "token_type_ids")
        return types

    def _embeds(self, embeds: Any, params: SamplingParams | PoolingParams) -> RawTensor:
        import torch  # is there already, where somebody has a tensor

        size, words = self.config.prompt_embeds_size, None
        if size is None:
            words = "prompt_embeds needs an engine with enable_prompt_embeds"
        elif not (
            isinstance(embeds, torch.Tensor) and embeds.is_floating_point() and embeds.shape[1:] == (size,)
        ):
            words = f"prompt_embeds takes a tensor of floats [tokens, {size}]"
        elif params.truncate_prompt_tokens or getattr(params, "prompt_logprobs", None) is not None:
            words = "prompt_embeds has no tokens to cut off or to report"
        if words:
            raise InvalidRequestError(words, "prompt_embeds")
        return RawTensor.of(embeds)

    def _resumed(self, prompt: Mapping[str, Any], params: SamplingParams, room: int) -> list[int]:
        """The tokens that the request has produced already."""
        resumed = list(prompt.get("resume_token_ids") or ())
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
        prompt = as_mapping(prompt)
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


def as_mapping(prompt: Any) -> Mapping[str, Any]:
    """A text is a prompt with nothing beside it."""
    if isinstance(prompt, str):
        return {"prompt": prompt}
    if not isinstance(prompt, Mapping):
        raise InvalidRequestError(
            f"the prompt is a {type(prompt).__name__}; it takes text, or a mapping with prompt or prompt_token_ids",
            "prompt",
        )
    return prompt
