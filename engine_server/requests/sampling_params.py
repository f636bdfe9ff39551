"""Sampling parameters: the choice of a request's tokens, the data reported about them, and the end of generation."""

import copy
from collections.abc import Collection
from enum import IntEnum
from typing import Any, Self

import msgspec

from engine_server.contract.base.quoting import quote
from engine_server.requests import validation as valid
from engine_server.requests.errors import InvalidRequestError
from engine_server.requests.marks import MAX_MARKS
from engine_server.requests.reasoning import Reasoning
from engine_server.requests.scheduler_stats import FinishReason
from engine_server.requests.structured_outputs import StructuredOutputsParams
from engine_server.requests.validation import MAX_INT32, MAX_UINT64, MIN_INT64

# The default of EngineArgs.max_logprobs.
MAX_LOGPROBS = 20
# Maximum number of completions of one prompt, as in vLLM.
MAX_COMPLETIONS = 16384
# Below this temperature sampling is greedy, as in vLLM.
GREEDY_TEMPERATURE = 1e-5


class RequestOutputKind(IntEnum):
    """The content of each RequestOutput of a stream."""

    # Everything since the start of the request.
    CUMULATIVE = 0
    # Only the text and tokens since the previous output.
    DELTA = 1
    # Everything, in one output at the end.
    FINAL_ONLY = 2


class SamplingParams(msgspec.Struct, kw_only=True, tag=True, omit_defaults=True):
    """Sampling parameters, with the names and defaults of OpenAI's API and vLLM's.

    n: completions of the prompt. best_of: completions to generate, of which the n likeliest are returned at the end.
    temperature: 0 is greedy. top_k: 0 or -1 disables it. min_p: minimum probability, relative to the likeliest token.
    presence_penalty, frequency_penalty: subtracted from the logits of output tokens, once or per occurrence.
    repetition_penalty: divides positive logits of prompt and output tokens, multiplies negative ones.
    seed: the tokens are a function of prompt and seed; None draws a seed at admission.
    stop: strings that end the text, which excludes them unless include_stop_str_in_output.
    max_tokens: maximum number of new tokens; None: up to the end of the context.
    min_tokens: tokens before which no end of sequence and no stop takes effect.
    timeout: seconds from arrival after which the request ends with the tokens so far.
    logprobs, prompt_logprobs: number of likeliest tokens to report at each position; -1: the whole vocabulary.
        EngineArgs.max_logprobs limits both. True is 1.
    flat_logprobs: return logprobs as one FlatLogprobs rather than a dict per position.
    mark_token_ids: tokens that delimit parts of the output, special ones or not. The n-th is shown in the text as one
        character, U+D800 + n, a lone surrogate that no decoded text contains.
    logit_bias: added to the logits of tokens. bad_words: texts that are never generated, at the start of a word or
        inside one; bad_words_token_ids are never generated either, and hold the tokens of bad_words from admission on.
    logits_processors: import paths among those of EngineArgs.logits_processors.
    extra_args: plain data that is passed along with the request for other code; the engine doesn't read it.
    truncate_prompt_tokens: number of tokens to keep from the end of the prompt; -1: as many as fit.
    structured_outputs: a grammar for the output. The request ends where the grammar does, whatever min_tokens,
        ignore_eos, bad_words and allowed_token_ids are.
    reasoning: the delimiters of the output's reasoning, and its limit. A grammar begins where it ends, if each is one
        token. Its end is generated whatever the other parameters are.

    Raises InvalidRequestError, which names the parameter.
    """

    n: int = 1
    best_of: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    bad_words_token_ids: list[list[int]] | None = None
    max_tokens: int | None = 16
    min_tokens: int = 0
    timeout: float | None = None
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    flat_logprobs: bool = False
    include_stop_str_in_output: bool = False
    detokenize: bool = True
    skip_special_tokens: bool = True
    mark_token_ids: list[int] | None = None
    spaces_between_special_tokens: bool = True
    logits_processors: list[str] | None = None
    truncate_prompt_tokens: int | None = None
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    extra_args: dict[str, Any] | None = None
    structured_outputs: StructuredOutputsParams | None = None
    reasoning: Reasoning | None = None
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE

    def __post_init__(self) -> None:
        self._check_choice()
        self._check_end()
        self._check_reports()
        self._check_logits()
        self._check_combinations()

    @classmethod
    def from_optional(cls, **parameters: Any) -> Self:
        """Make parameters from arguments in which None means the default (max_tokens: up to the end of the context).

        As in vLLM, keys of logit_bias may be decimal strings, and its values are clamped to -100 and 100.
        """
        given = {
            name: value for name, value in parameters.items() if value is not None or name == "max_tokens"
        }
        if bias := given.get("logit_bias"):
            given["logit_bias"] = {int(key): min(100.0, max(-100.0, value)) for key, value in bias.items()}
        return cls(**given)

    def clone(self) -> Self:
        """Return a deep copy."""
        return copy.deepcopy(self)

    def _check_choice(self) -> None:
        self.n = valid.integer("n", self.n, 1, MAX_COMPLETIONS)
        if self.best_of is not None:
            self.best_of = valid.integer("best_of", self.best_of, 1, MAX_COMPLETIONS)
        self.temperature = valid.number("temperature", self.temperature, 0, 100)
        self.top_p = valid.number("top_p", self.top_p, 0, 1, "exclusive")
        self.top_k = valid.integer("top_k", self.top_k, -1, MAX_INT32)
        self.min_p = valid.number("min_p", self.min_p, 0, 1)
        if self.seed is not None:
            self.seed = valid.integer("seed", self.seed, MIN_INT64, MAX_UINT64)

    def _check_end(self) -> None:
        if isinstance(self.stop, str):
            self.stop = valid.nonempty_text("stop", self.stop)
        elif self.stop is not None:
            self.stop = valid.items("stop", self.stop, valid.nonempty_text)
        if self.stop_token_ids is not None:
            self.stop_token_ids = valid.tokens("stop_token_ids", self.stop_token_ids)
        if self.max_tokens is not None:
            self.max_tokens = valid.integer("max_tokens", self.max_tokens, 1, MAX_INT32)
        self.min_tokens = valid.integer("min_tokens", self.min_tokens, 0, MAX_INT32)
        if self.timeout is not None:
            self.timeout = valid.number("timeout", self.timeout, 0, bound="exclusive")
        self.ignore_eos = valid.flag("ignore_eos", self.ignore_eos)
        self.truncate_prompt_tokens = truncation(self.truncate_prompt_tokens)

    def _check_reports(self) -> None:
        self.logprobs = _logprobs("logprobs", self.logprobs)
        self.prompt_logprobs = _logprobs("prompt_logprobs", self.prompt_logprobs)
        self.flat_logprobs = valid.flag("flat_logprobs", self.flat_logprobs)
        self.include_stop_str_in_output = valid.flag(
            "include_stop_str_in_output", self.include_stop_str_in_output
        )
        self.detokenize = valid.flag("detokenize", self.detokenize)
        self.skip_special_tokens = valid.flag("skip_special_tokens", self.skip_special_tokens)
        if self.mark_token_ids is not None:
            self.mark_token_ids = valid.tokens("mark_token_ids", self.mark_token_ids)
            if len(self.mark_token_ids) > MAX_MARKS:
                valid.refuse_value("mark_token_ids", self.mark_token_ids, f"at most {MAX_MARKS} tokens")
        self.spaces_between_special_tokens = valid.flag(
            "spaces_between_special_tokens", self.spaces_between_special_tokens
        )
        if type(self.output_kind) is not RequestOutputKind:
            kind = valid.integer("output_kind", self.output_kind, 0, len(RequestOutputKind) - 1)
            self.output_kind = RequestOutputKind(kind)
        if self.extra_args is not None:
            if not isinstance(self.extra_args, dict):
                valid.refuse_type("extra_args", self.extra_args, "dict")
            self.extra_args = valid.plain_data("extra_args", self.extra_args)

    def _check_logits(self) -> None:
        self.presence_penalty = valid.number("presence_penalty", self.presence_penalty, -2, 2)
        self.frequency_penalty = valid.number("frequency_penalty", self.frequency_penalty, -2, 2)
        self.repetition_penalty = valid.number(
            "repetition_penalty", self.repetition_penalty, 0, 100, "exclusive"
        )
        if self.logit_bias is not None:
            if not isinstance(self.logit_bias, dict):
                valid.refuse_type("logit_bias", self.logit_bias, "dict")
            self.logit_bias = {
                valid.token("logit_bias", key): valid.number("logit_bias", value, -100, 100)
                for key, value in self.logit_bias.items()
            }
        if self.allowed_token_ids is not None:
            self.allowed_token_ids = valid.tokens("allowed_token_ids", self.allowed_token_ids)
            if not self.allowed_token_ids:
                valid.refuse_value("allowed_token_ids", self.allowed_token_ids, "`list` of length >= 1")
        if self.bad_words is not None:
            self.bad_words = valid.items("bad_words", self.bad_words, valid.nonempty_text)
        if self.bad_words_token_ids is not None:
            self.bad_words_token_ids = valid.items("bad_words_token_ids", self.bad_words_token_ids, _word)
        if self.logits_processors is not None:
            self.logits_processors = valid.items(
                "logits_processors", self.logits_processors, valid.nonempty_text
            )
        if self.structured_outputs is not None:
            if not isinstance(self.structured_outputs, StructuredOutputsParams):
                valid.refuse_type("structured_outputs", self.structured_outputs, "StructuredOutputsParams")
            self.structured_outputs = msgspec.structs.replace(self.structured_outputs)  # checks it again
        if self.reasoning is not None:
            if not isinstance(self.reasoning, Reasoning):
                valid.refuse_type("reasoning", self.reasoning, "Reasoning")
            self.reasoning = msgspec.structs.replace(self.reasoning)  # checks it again

    def _check_combinations(self) -> None:
        if self.num_children < self.n:
            refuse_combination("best_of", self.best_of, f"n is {self.n}, which is more")
        if self.best_of is not None and self.best_of > 1 and self.greedy:
            refuse_combination("best_of", self.best_of, "greedy sampling has only one completion")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            refuse_combination("min_tokens", self.min_tokens, f"max_tokens is {self.max_tokens}")
        if not self.spaces_between_special_tokens:
            refuse_combination("spaces_between_special_tokens", False, "only True is supported")
        if self.stop_strings and not self.detokenize:
            refuse_combination("stop", self.stop, "stop strings need detokenize=True")

    @property
    def num_children(self) -> int:
        """The number of completions to generate."""
        return self.best_of or self.n

    @property
    def stop_strings(self) -> list[str]:
        if isinstance(self.stop, str):
            return [self.stop]
        return self.stop or []

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_TEMPERATURE

    @property
    def needs_last_token(self) -> bool:
        """True if sampling a token requires the previous one to be known on the host."""
        return (
            bool(self.logits_processors)
            or self.structured_outputs is not None
            or any(len(one) > 1 for one in self.bad_words_token_ids or ())
        )

    @property
    def penalises(self) -> bool:
        return (self.presence_penalty, self.frequency_penalty, self.repetition_penalty) != (0, 0, 1)

    def end(
        self, token_id: int, num_output: int, max_tokens: int, eos_token_ids: Collection[int]
    ) -> tuple[FinishReason | None, int | None]:
        """Return the finish reason and the stop token if `token_id`, the output token `num_output`, ends generation.

        num_output: counts from 1. Without an end both are None.
        """
        if self.structured_outputs is not None and token_id in eos_token_ids:
            return "stop", None
        if num_output >= self.min_tokens:
            if token_id in eos_token_ids and not self.ignore_eos:
                return "stop", None
            if token_id in (self.stop_token_ids or ()):
                return "stop", token_id
        return ("length" if num_output >= max_tokens else None), None


def truncation(value: object) -> int | None:
    """Check truncate_prompt_tokens: None, -1, or a positive number of tokens."""
    if value is None:
        return None
    count = valid.integer("truncate_prompt_tokens", value, -1, MAX_INT32)
    if count == 0:
        valid.refuse_value("truncate_prompt_tokens", value, "-1 or an `int` >= 1")
    return count


def refuse_combination(name: str, value: object, reason: str) -> None:
    """Raise InvalidRequestError for a value that conflicts with another parameter."""
    raise InvalidRequestError(f"{name} is {quote(value)}; {reason}", name)


def _logprobs(name: str, value: object) -> int | None:
    if value is None or value is False:
        return None
    return 1 if value is True else valid.integer(name, value, -1, MAX_INT32)


def _word(name: str, value: object) -> list[int]:
    token_ids = valid.tokens(name, value)
    if not token_ids:
        valid.refuse_value(name, value, "`list` of length >= 1")
    return token_ids
