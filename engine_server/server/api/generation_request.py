"""The request fields that completions and chat share, and their validation.

Known fields that aren't supported are declared with `only`. Unknown ones are accepted with a warning in the log.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainValidator, ValidationError
from pydantic_core import ErrorDetails

from engine_server.contract import bounds
from engine_server.contract.continuation import ROUTER_FIELD
from engine_server.contract.errors import ErrorCode
from engine_server.contract.quoting import shorten
from engine_server.engine.beam_search import BeamSearchParams
from engine_server.requests.sampling_params import RequestOutputKind, SamplingParams
from engine_server.requests.validation import MAX_INT32, MAX_INT64, MIN_INT64
from engine_server.server.api import fields
from engine_server.server.api.answers import AnswerOptions
from engine_server.server.api.fields import MAX_CHOICES, Ignored, only, stop_strings, token_biases
from engine_server.server.api.unknown_fields import unknown_fields
from engine_server.server.http.errors import ApiError

if TYPE_CHECKING:
    from engine_server.requests.prompts import TokensPrompt
    from engine_server.server.parsers.tool_use import AnswerStyle
    from engine_server.server.settings import ApiSettings

# Fields that SamplingParams has by the same name.
SAMPLING_FIELDS = (
    "n", "best_of", "presence_penalty", "frequency_penalty", "repetition_penalty", "temperature", "top_p", "top_k",
    "min_p", "seed", "logit_bias", "bad_words", "allowed_token_ids", "stop_token_ids", "min_tokens", "ignore_eos",
    "skip_special_tokens", "spaces_between_special_tokens", "include_stop_str_in_output", "detokenize",
    "logits_processors", "prompt_logprobs", "timeout",
)  # fmt: skip
# Those that a beam search takes; it refuses the others.
BEAM_SEARCH_FIELDS = ("n", "temperature", "seed", "ignore_eos", "include_stop_str_in_output")


class ApiRequest(BaseModel):
    """A request's body. Null means the default, everywhere."""

    model_config = ConfigDict(strict=True, extra="allow")

    def check_combinations(self) -> None:
        """Raise ApiError for fields that exclude each other."""


class StreamOptions(BaseModel):
    """Options of a streamed answer."""

    model_config = ConfigDict(strict=True)

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: Annotated[Any, only(False)] = None


class GenerationRequest(ApiRequest):
    """The shared fields."""

    ENGINE_FIELDS: ClassVar[Mapping[str, str]] = {}

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: Annotated[int, Field(ge=MIN_INT64, le=MAX_INT64)] | None = None
    stop: Annotated[list[str], PlainValidator(stop_strings)] = []
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: Annotated[dict[int, float] | None, PlainValidator(token_biases)] = None
    user: Ignored = None

    # Beyond OpenAI's API, with vLLM's names.
    best_of: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    use_beam_search: bool | None = None
    length_penalty: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    bad_words: (
        Annotated[
            list[Annotated[str, Field(max_length=bounds.BAD_WORD_CHARACTERS.limit)]],
            Field(max_length=bounds.BAD_WORDS.limit),
        ]
        | None
    ) = None
    allowed_token_ids: Annotated[list[int], Field(max_length=bounds.ALLOWED_TOKENS.limit)] | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    stop_token_ids: Annotated[list[int], Field(max_length=bounds.STOP_TOKENS.limit)] | None = None
    detokenize: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    logits_processors: list[str] | None = None
    prompt_logprobs: int | None = None
    truncate_prompt_tokens: Annotated[int, Field(ge=-1, le=MAX_INT32)] | None = None
    truncation_side: Literal["left", "right"] | None = None
    add_special_tokens: bool | None = None
    priority: Annotated[int, Field(ge=MIN_INT64, le=MAX_INT64)] | None = None
    timeout: float | None = None
    request_id: Annotated[str, AfterValidator(fields.request_id)] | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None

    session_id: Ignored = None
    return_mm_kwargs: Ignored = None

    response_format: Annotated[Any, only({"type": "text"})] = None
    structured_outputs: Annotated[Any, only()] = None
    guided_json: Annotated[Any, only()] = None
    guided_regex: Annotated[Any, only()] = None
    guided_choice: Annotated[Any, only()] = None
    guided_grammar: Annotated[Any, only()] = None
    guided_decoding_backend: Annotated[Any, only()] = None
    guided_whitespace_pattern: Annotated[Any, only()] = None
    thinking_token_budget: Annotated[Any, only(-1)] = None
    watermarking: Annotated[Any, only(False)] = None
    early_stopping: Annotated[Any, only(False)] = None
    logprob_token_ids: Annotated[Any, only()] = None
    repetition_detection: Annotated[Any, only()] = None
    stream_interval: Annotated[Any, only(1)] = None
    routed_experts_prompt_start: Annotated[Any, only(0)] = None
    return_token_offsets: Annotated[Any, only(False)] = None
    kv_transfer_params: Annotated[Any, only()] = None
    ec_transfer_params: Annotated[Any, only()] = None
    vllm_xargs: Annotated[Any, only({})] = None

    @property
    def streams(self) -> bool:
        return bool(self.stream)

    @property
    def own_id(self) -> str | None:
        return self.request_id

    @property
    def queue_priority(self) -> int:
        return self.priority or 0

    @property
    def prompt_only(self) -> bool:
        return False

    @property
    def answer_style(self) -> AnswerStyle | None:
        return None

    def answer_options(self, settings: ApiSettings) -> AnswerOptions:
        """Return what the answer reports."""
        stream_options = self.stream_options or StreamOptions()
        include_usage = bool(stream_options.include_usage) or settings.enable_force_include_usage
        tokens_as_ids = self.return_tokens_as_token_ids
        return AnswerOptions(
            include_usage=include_usage,
            continuous_usage=include_usage and bool(stream_options.continuous_usage_stats),
            cached_tokens=settings.enable_prompt_tokens_details,
            token_ids=bool(self.return_token_ids),
            tokens_as_ids=settings.return_tokens_as_token_ids if tokens_as_ids is None else tokens_as_ids,
        )

    def check_combinations(self) -> None:
        if self.stream_options is not None and not self.stream:
            raise ApiError(400, "stream_options needs stream to be true", param="stream_options")
        if self.stream and self.prompt_logprobs is not None:
            raise ApiError(400, "prompt_logprobs needs stream to be false", param="prompt_logprobs")
        if self.truncation_side is not None and self.truncate_prompt_tokens is None:
            raise ApiError(400, "truncation_side needs truncate_prompt_tokens", param="truncation_side")
        if self.length_penalty not in (None, 1) and not self.use_beam_search:
            raise ApiError(400, "length_penalty needs use_beam_search to be true", param="length_penalty")
        if self.use_beam_search:
            self._check_beam_search()

    def _check_beam_search(self) -> None:
        """Raise ApiError for a field that has no effect on a beam search."""
        defaults = SamplingParams()
        given = [name for name in ("stop", "priority") if getattr(self, name)]
        given += [
            name
            for name in SAMPLING_FIELDS
            if name not in BEAM_SEARCH_FIELDS
            and getattr(self, name) not in (None, getattr(defaults, name), [], {})
        ]
        if given:
            raise ApiError(400, f"{given[0]} has no effect on a beam search; leave it out", param=given[0])

    def to_sampling_params(
        self, defaults: Mapping[str, Any], max_tokens: int | None, logprobs: int | None
    ) -> SamplingParams:
        """Return the engine's parameters. Raises InvalidRequestError for values out of range.

        defaults: the model's own, for fields that the request leaves out.
        """
        given = {name: getattr(self, name) for name in SAMPLING_FIELDS}
        parameters = {**defaults, **{name: value for name, value in given.items() if value is not None}}
        parameters |= {
            "stop": self.stop,
            "max_tokens": max_tokens,
            "logprobs": logprobs,
            "output_kind": RequestOutputKind.DELTA if self.stream else RequestOutputKind.FINAL_ONLY,
        }
        return SamplingParams(**parameters)

    def to_beam_search_params(self, max_tokens: int | None) -> BeamSearchParams | None:
        """Return the parameters of a beam search; None to sample. Raises InvalidRequestError."""
        if not self.use_beam_search:
            return None
        return BeamSearchParams(
            beam_width=self.n or 1,
            max_tokens=MAX_INT32 if max_tokens is None else max_tokens,
            ignore_eos=bool(self.ignore_eos),
            temperature=self.temperature or 0.0,
            length_penalty=1.0 if self.length_penalty is None else self.length_penalty,
            include_stop_str_in_output=bool(self.include_stop_str_in_output),
        )

    def finish_prompt(self, prompt: TokensPrompt, context: int) -> TokensPrompt:
        """Return the prompt, cut as the request asks, and with its cache salt. context: the longest, in tokens."""
        if self.truncate_prompt_tokens is not None:
            prompt = cut(prompt, self.truncate_prompt_tokens, self.truncation_side or "left", context)
        if self.cache_salt is not None:
            prompt["cache_salt"] = self.cache_salt
        return prompt


def cut(prompt: TokensPrompt, keep: int, side: Literal["left", "right"], context: int) -> TokensPrompt:
    """Return a prompt without the tokens over `keep` at one side; -1: as many as leave room for one more token."""
    token_ids = prompt["prompt_token_ids"]
    keep = context - 1 if keep == -1 else keep
    if len(token_ids) <= keep:
        return prompt
    kept = token_ids[len(token_ids) - keep :] if side == "left" else token_ids[:keep]
    return {"prompt_token_ids": kept}


R = TypeVar("R", bound=ApiRequest)


def parse_request(kind: type[R], body: bytes) -> R:
    """Return the request in a JSON `body`. Raises ApiError 400, which names the field that is wrong."""
    try:
        request = kind.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        raise to_api_error(first) from None
    if request.model_extra:
        unknown_fields.warn(name for name in request.model_extra if name != ROUTER_FIELD)
    request.check_combinations()
    return request


def to_api_error(error: ErrorDetails) -> ApiError:
    field = shorten(".".join(str(step) for step in error["loc"]))
    match error["type"]:
        case "json_invalid":
            return ApiError(400, f"the body is not JSON: {error['msg']}", code=ErrorCode.INVALID_JSON)
        case "missing":
            return ApiError(400, f"{field} is missing", param=field, code=ErrorCode.MISSING_FIELD)
        case fields.UNSUPPORTED:
            return ApiError(400, f"{field} {error['msg']}", param=field, code=ErrorCode.UNSUPPORTED_VALUE)
        case "model_type" if not field:
            return ApiError(400, "the body is not a JSON object")
        case _:
            return ApiError(
                400, f"{field}: {shorten(error['msg'])}", param=field, code=ErrorCode.INVALID_VALUE
            )
