"""How a request's tokens are chosen, and when it ends."""

from collections.abc import Collection
from enum import IntEnum
from functools import cache
from typing import Annotated

import msgspec
from msgspec import Meta

from engine_server.requests.errors import InvalidRequestError
from engine_server.requests.scheduler_stats import FinishReason

MAX_LOGPROBS = 20

MOST = (1 << 31) - 1
Count = Annotated[int, Meta(ge=1, le=MOST)]
Share = Annotated[float, Meta(ge=0, le=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Text = Annotated[str, Meta(min_length=1)]
Token = Annotated[int, Meta(ge=0, le=MOST)]
NumLogprobs = Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)]


class RequestOutputKind(IntEnum):
    """What each RequestOutput of a stream holds."""

    CUMULATIVE = 0  # everything so far
    DELTA = 1  # what is new since the last
    FINAL_ONLY = 2  # everything, once, at the end


class SamplingParams(msgspec.Struct, kw_only=True, tag=True, omit_defaults=True):
    """Sampling parameters, with the names and defaults of OpenAI's API and vLLM's.

    n: completions of the prompt. best_of: how many to make, of which the n likeliest are given, at the end.
    temperature: 0 is greedy. top_k: 0 or -1 turns it off. min_p: the least probability, as a share of the likeliest's.
    presence_penalty, frequency_penalty: taken from the logits of the output's tokens, once or for each time.
    repetition_penalty: divides the positive logits of the prompt's and the output's tokens, multiplies the others.
    seed: the tokens are a function of the prompt and the seed; drawn at admission where it is None.
    stop: strings that end the text, which leaves them out unless include_stop_str_in_output.
    max_tokens: new tokens at most; None means up to the context's end. min_tokens: no end of sequence before.
    timeout: seconds from arrival, after which the request ends as it is.
    logprobs, prompt_logprobs: how many of the likeliest tokens to report beside each one.
    logit_bias: what to add to tokens' logits. bad_words: texts that never come, be it at a word's beginning or inside;
    bad_words_token_ids is their tokens, made of them at admission.
    logits_processors: import paths among those that the engine was started with; see EngineArgs.
    truncate_prompt_tokens: how many of the prompt's last tokens to keep; -1: as many as fit.

    Raises InvalidRequestError, which names the parameter.
    """

    n: Count = 1
    best_of: Count | None = None
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    repetition_penalty: Annotated[float, Meta(gt=0, le=100)] = 1.0
    temperature: Annotated[float, Meta(ge=0, le=100)] = 1.0
    top_p: Annotated[float, Meta(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Meta(ge=-1, le=MOST)] = 0
    min_p: Share = 0.0
    seed: int | None = None
    stop: Text | list[Text] | None = None
    stop_token_ids: list[Token] | None = None
    bad_words: list[Text] | None = None
    bad_words_token_ids: list[Annotated[list[Token], Meta(min_length=1)]] | None = None
    max_tokens: Count | None = 16
    min_tokens: Annotated[int, Meta(ge=0, le=MOST)] = 0
    timeout: Annotated[float, Meta(gt=0)] | None = None
    ignore_eos: bool = False
    logprobs: NumLogprobs | None = None
    prompt_logprobs: NumLogprobs | None = None
    include_stop_str_in_output: bool = False
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    logits_processors: list[Text] | None = None
    truncate_prompt_tokens: Annotated[int, Meta(ge=-1, le=MOST)] | None = None
    logit_bias: dict[Token, Annotated[float, Meta(ge=-100, le=100)]] | None = None
    allowed_token_ids: Annotated[list[Token], Meta(min_length=1)] | None = None
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE

    def __post_init__(self) -> None:
        check_fields(self)
        for wrong, name, words in (
            (self.num_children < self.n, "best_of", f"n is {self.n}, which is more"),
            (self.num_children > 1 and bool(self.best_of) and self.greedy, "best_of", "greedy makes but one"),
            (self.min_tokens > (self.max_tokens or self.min_tokens), "min_tokens", f"max_tokens is {self.max_tokens}"),
            (not -(1 << 63) <= (self.seed or 0) < 1 << 64, "seed", "it takes 64 bits, signed or not"),
            (self.truncate_prompt_tokens == 0, "truncate_prompt_tokens", "it takes -1, or an integer of at least 1"),
            (not self.spaces_between_special_tokens, "spaces_between_special_tokens", "it takes True alone"),
            (self.stop_strings and not self.detokenize, "stop", "stop strings need detokenize=True"),
        ):  # fmt: skip
            if wrong:
                raise InvalidRequestError(f"{name} is {getattr(self, name)!r}; {words}", name)

    @property
    def num_children(self) -> int:
        """How many completions are made."""
        return self.best_of or self.n

    @property
    def stop_strings(self) -> list[str]:
        if isinstance(self.stop, str):
            return [self.stop]
        return self.stop or []

    @property
    def greedy(self) -> bool:
        return self.temperature < 1e-5

    @property
    def needs_last_token(self) -> bool:
        """Whether the host must know a token before it can launch the sampling of the next."""
        return bool(self.logits_processors) or any(len(one) > 1 for one in self.bad_words_token_ids or ())

    @property
    def penalises(self) -> bool:
        return (self.presence_penalty, self.frequency_penalty, self.repetition_penalty) != (0, 0, 1)

    @property
    def adjusts_logits(self) -> bool:
        """Whether single logits change before a token is chosen."""
        return (
            bool(self.min_tokens or self.logit_bias or self.bad_words_token_ids or self.logits_processors)
            or self.allowed_token_ids is not None
            or self.penalises
        )

    def end(
        self, token_id: int, num_output: int, max_tokens: int, eos_token_ids: Collection[int]
    ) -> tuple[FinishReason | None, int | None]:
        """Whether `token_id`, as output token number `num_output`, ends the request: the reason, and a stop token."""
        if num_output >= self.min_tokens:
            if token_id in eos_token_ids and not self.ignore_eos:
                return "stop", None
            if token_id in (self.stop_token_ids or ()):
                return "stop", token_id
        return ("length" if num_output >= max_tokens else None), None


@cache
def twin(kind: type[msgspec.Struct]) -> type[msgspec.Struct]:
    """A struct with the same fields that checks nothing but their annotations."""
    return msgspec.defstruct(kind.__name__, [(item.name, item.type) for item in msgspec.structs.fields(kind)])


def check_fields(params: msgspec.Struct) -> None:
    """Hold each field to its annotation. Raises InvalidRequestError, which names the field and what it takes."""
    try:
        checked = msgspec.convert(params, twin(type(params)), from_attributes=True)
    except msgspec.ValidationError as error:
        words, _, path = str(error).partition(" - at ")
        name = path.partition("$.")[2].strip("`").partition("[")[0]
        raise InvalidRequestError(
            f"{name} is {getattr(params, name)!r}; {words.replace('E', 'e', 1)}", name
        ) from None
    for name in checked.__struct_fields__:
        setattr(params, name, getattr(checked, name))
