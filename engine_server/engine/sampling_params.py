"""How a request's tokens are chosen, and when it ends."""

from enum import IntEnum
from typing import Any

import msgspec

from engine_server.engine.errors import InvalidRequestError

MAX_LOGPROBS = 20


class RequestOutputKind(IntEnum):
    """What each RequestOutput of a stream holds."""

    CUMULATIVE = 0  # everything so far
    DELTA = 1  # what is new since the last
    FINAL_ONLY = 2  # everything, once, at the end


class SamplingParams(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Sampling parameters, with the names and defaults of OpenAI's API and vLLM's.

    temperature: 0 is greedy. top_p in (0, 1]. top_k: 0 or -1 turns it off.
    seed: the tokens are a function of the prompt and the seed; drawn at admission where it is None.
    stop: strings that end the text, which leaves them out unless include_stop_str_in_output.
    max_tokens: new tokens at most; None means up to the context's end. min_tokens: no end of sequence before.
    logprobs: how many of the likeliest tokens to report beside each sampled one, at most 20.

    Raises InvalidRequestError, which names the parameter.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    max_tokens: int | None = 16
    min_tokens: int = 0
    ignore_eos: bool = False
    logprobs: int | None = None
    include_stop_str_in_output: bool = False
    detokenize: bool = True
    skip_special_tokens: bool = True
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE

    def __post_init__(self) -> None:
        self._number("temperature", 0.0, 100.0)
        self._number("top_p", 0.0, 1.0, above=True)
        self._integer("top_k", -1)
        self._integer("n", 1)
        self._integer("min_tokens", 0)
        self._integer("max_tokens", 1, optional=True)
        self._integer("logprobs", 0, MAX_LOGPROBS, optional=True)
        self._integer("seed", -(1 << 63), (1 << 64) - 1, optional=True)
        if self.n > 1:
            raise InvalidRequestError(f"n is {self.n}; only 1 is supported", "n")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidRequestError(
                f"min_tokens is {self.min_tokens}, more than max_tokens, {self.max_tokens}", "min_tokens"
            )
        if not all(isinstance(text, str) and text for text in self.stop_strings):
            raise InvalidRequestError(f"stop is {self.stop!r}; it takes non-empty strings", "stop")
        if self.stop_strings and not self.detokenize:
            raise InvalidRequestError("stop strings need detokenize=True", "stop")
        if not all(type(token) is int and token >= 0 for token in self.stop_token_ids or ()):
            raise InvalidRequestError(
                f"stop_token_ids is {self.stop_token_ids!r}; it takes token ids, 0 or more", "stop_token_ids"
            )

    @property
    def stop_strings(self) -> list[str]:
        if isinstance(self.stop, str):
            return [self.stop]
        return self.stop or []

    @property
    def greedy(self) -> bool:
        return self.temperature < 1e-5

    def _number(self, name: str, low: float, high: float, above: bool = False) -> None:
        value: Any = getattr(self, name)
        real = isinstance(value, int | float) and not isinstance(value, bool)
        if not real or not (low < value if above else low <= value) or not value <= high:
            allowed = f"{'above' if above else 'from'} {low:g} to {high:g}"
            raise InvalidRequestError(f"{name} is {value!r}; it takes a number {allowed}", name)

    def _integer(self, name: str, low: int, high: int | None = None, optional: bool = False) -> None:
        value: Any = getattr(self, name)
        if value is None and optional:
            return
        if type(value) is not int or value < low or (high is not None and value > high):
            allowed = f"of at least {low}" if high is None else f"from {low} to {high}"
            raise InvalidRequestError(f"{name} is {value!r}; it takes an integer {allowed}", name)
