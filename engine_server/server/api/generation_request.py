"""The request fields that completions and chat share, and their validation.

Known fields that aren't supported are declared with `only`. Unknown ones are accepted with a warning in the log.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache, cached_property
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainValidator, ValidationError
from pydantic_core import ErrorDetails

from engine_server.contract.base import bounds
from engine_server.contract.base.quoting import shorten
from engine_server.contract.wire.continuation import ROUTER_FIELD
from engine_server.contract.wire.errors import ErrorCode
from engine_server.engine.beam_search import BeamSearchParams
from engine_server.requests.errors import InvalidRequestError
from engine_server.requests.sampling_params import RequestOutputKind, SamplingParams
from engine_server.requests.validation import MAX_INT32, MAX_INT64, MIN_INT64
from engine_server.server.api import fields
from engine_server.server.api.content import MediaUse
from engine_server.server.api.cut_body import CutBody, plain_files
from engine_server.server.api.fields import (
    MAX_CHOICES,
    Ignored,
    Items,
    TokenIds,
    only,
    stop_strings,
    token_biases,
)
from engine_server.server.api.ignored import IgnoredPart, unknown_fields
from engine_server.server.api.openai_answer import AnswerOptions
from engine_server.server.api.whole_numbers import with_whole_numbers
from engine_server.server.generation.prompts import Cut
from engine_server.server.generation.response_format import FIELDS as GRAMMAR_FIELDS
from engine_server.server.generation.response_format import RequestedGrammar, requested_grammar
from engine_server.server.http.errors import ApiError
from engine_server.shared.body_buffer import Body, contiguous

if TYPE_CHECKING:
    from engine_server.server.conversation.layout import Layout
    from engine_server.server.generation.prompts import PromptSource
    from engine_server.server.generation.tool_use import AnswerStyle
    from engine_server.server.settings import ApiSettings

# Parameters of the engine that are not the request's field of the same name, but made of it and others.
MADE_OTHERWISE = {"max_tokens", "stop", "logprobs", "structured_outputs", "truncate_prompt_tokens"}


class TakenByBeams:
    """Marks a field of SamplingParams that a beam search takes too; it refuses the others."""


BEAMS = TakenByBeams()


class ApiRequest(BaseModel):
    """A request's body. Null means the default, everywhere."""

    model_config = ConfigDict(strict=True, extra="allow")

    # What to say where a field is missing, by its name.
    MISSING: ClassVar[Mapping[str, str]] = {}

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

    # The beginning of the answer's id.
    ID_PREFIX: ClassVar[str]
    # The request's field for an engine's parameter, where their names differ.
    ENGINE_FIELDS: ClassVar[Mapping[str, str]] = {}

    # None: the served model, as in vLLM.
    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    temperature: Annotated[float | None, BEAMS] = None
    top_p: float | None = None
    seed: Annotated[Annotated[int, Field(ge=MIN_INT64, le=MAX_INT64)] | None, BEAMS] = None
    stop: Annotated[list[str], PlainValidator(stop_strings)] = []
    n: Annotated[Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None, BEAMS] = None
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
            Items[Annotated[str, Field(max_length=bounds.BAD_WORD_CHARACTERS.limit)]],
            Field(max_length=bounds.BAD_WORDS.limit),
        ]
        | None
    ) = None
    allowed_token_ids: Annotated[TokenIds, Field(max_length=bounds.ALLOWED_TOKENS.limit)] | None = None
    min_tokens: int | None = None
    ignore_eos: Annotated[bool | None, BEAMS] = None
    stop_token_ids: Annotated[TokenIds, Field(max_length=bounds.STOP_TOKENS.limit)] | None = None
    detokenize: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    include_stop_str_in_output: Annotated[bool | None, BEAMS] = None
    logits_processors: Items[str] | None = None
    prompt_logprobs: int | None = None
    truncate_prompt_tokens: Annotated[int, Field(ge=-1, le=MAX_INT32)] | None = None
    truncation_side: Literal["left", "right"] | None = None
    add_special_tokens: bool | None = None
    priority: Annotated[int, Field(ge=MIN_INT64, le=MAX_INT64)] | None = None
    timeout: Annotated[float | None, BEAMS] = None
    request_id: Annotated[str, AfterValidator(fields.request_id)] | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None

    thinking_token_budget: Annotated[int, Field(ge=-1, le=MAX_INT32)] | None = None

    media_io_kwargs: Annotated[Any, only({})] = None
    mm_processor_kwargs: Annotated[Any, only({})] = None
    session_id: Ignored = None
    return_mm_kwargs: Ignored = None

    response_format: Any = None
    structured_outputs: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    guided_whitespace_pattern: Any = None

    guided_decoding_backend: Annotated[Any, only("auto")] = None
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

    @staticmethod
    @cache
    def sampling_fields() -> Sequence[str]:
        """Return the shared fields that are parameters of the engine under the same names."""
        shared = GenerationRequest.model_fields.keys() & SamplingParams.__struct_fields__
        return [name for name in SamplingParams.__struct_fields__ if name in shared - MADE_OTHERWISE]

    @property
    def streams(self) -> bool:
        return bool(self.stream)

    @property
    def prompt_only(self) -> bool:
        """True if the answer has the prompt and no new text."""
        return False

    @property
    def ignored_tools(self) -> Sequence[IgnoredPart]:
        """The tools that are left out of the prompt."""
        return ()

    @cached_property
    def media(self) -> Sequence[MediaUse]:
        """The media of the conversation, in whose places the prompt has notes."""
        return ()

    @property
    def ignored(self) -> Sequence[IgnoredPart]:
        """All that is left out of the prompt."""
        return [*self.ignored_tools, *(one.part for one in self.media)]

    @property
    def reasoning_budget(self) -> int | None:
        """The most tokens of the reasoning; None: no limit."""
        return None if self.thinking_token_budget == -1 else self.thinking_token_budget

    @property
    def reasoning_hints(self) -> Sequence[IgnoredPart]:
        """The limits of the reasoning that are ignored for a model whose reasoning is not known."""
        return ()

    @property
    def reasoning_switches(self) -> Sequence[IgnoredPart]:
        """The switches of the reasoning that are ignored for a chat template that has none."""
        return ()

    @property
    def answer_style(self) -> AnswerStyle | None:
        """The parts that the answer may have besides text; None for plain text. Raises ApiError 400."""
        return None

    def source(self, settings: ApiSettings, layout: Layout, context: int) -> PromptSource:
        """Return the prompts, without the tools of conversations. context: the most tokens of prompt and answer.

        Raises ApiError 400.
        """
        raise NotImplementedError

    def sampling_parameters(self, defaults: Mapping[str, Any]) -> dict[str, Any]:
        """Return the engine's parameters by name; the model's `defaults` are for fields that are left out.

        Raises InvalidRequestError.
        """
        raise NotImplementedError

    def beam_search_params(self, defaults: Mapping[str, Any]) -> BeamSearchParams | None:
        """Return the parameters of a beam search; None to sample. Raises InvalidRequestError."""
        return None

    def answer_options(self, settings: ApiSettings) -> AnswerOptions:
        """Return what the answer reports."""
        stream_options = self.stream_options or StreamOptions()
        forced = settings.enable_force_include_usage
        include_usage = forced or bool(stream_options.include_usage)
        tokens_as_ids = self.return_tokens_as_token_ids
        return AnswerOptions(
            include_usage=include_usage,
            continuous_usage=forced or (include_usage and bool(stream_options.continuous_usage_stats)),
            cached_tokens=settings.enable_prompt_tokens_details,
            token_ids=bool(self.return_token_ids),
            tokens_as_ids=settings.return_tokens_as_token_ids if tokens_as_ids is None else tokens_as_ids,
        )

    def check_combinations(self) -> None:
        if self.stream_options is not None and not self.stream:
            raise ApiError(
                ErrorCode.INVALID_VALUE, "stream_options needs stream to be true", param="stream_options"
            )
        if self.stream and self.prompt_logprobs is not None:
            raise ApiError(
                ErrorCode.INVALID_VALUE, "prompt_logprobs needs stream to be false", param="prompt_logprobs"
            )
        if self.truncation_side is not None and self.truncate_prompt_tokens is None:
            raise ApiError(
                ErrorCode.INVALID_VALUE,
                "truncation_side needs truncate_prompt_tokens",
                param="truncation_side",
            )
        if self.length_penalty not in (None, 1) and not self.use_beam_search:
            raise ApiError(
                ErrorCode.INVALID_VALUE,
                "length_penalty needs use_beam_search to be true",
                param="length_penalty",
            )
        if self.use_beam_search:
            self._check_beam_search()

    def _check_beam_search(self) -> None:
        """Raise ApiError for a field that has no effect on a beam search."""
        defaults = SamplingParams()
        given = [name for name in ("stop", "priority") if getattr(self, name)]
        given += [self.grammar.field] if self.grammar else []
        given += ["thinking_token_budget"] if self.reasoning_budget is not None else []
        given += [
            name
            for name in self.sampling_fields()
            if BEAMS not in type(self).model_fields[name].metadata
            and getattr(self, name) not in (None, getattr(defaults, name), [], {})
        ]
        if given:
            raise ApiError(
                ErrorCode.INVALID_VALUE,
                f"{given[0]} has no effect on a beam search; leave it out",
                param=given[0],
            )

    @cached_property
    def grammar(self) -> RequestedGrammar | None:
        """The grammar of the answer. Raises InvalidRequestError."""
        fields = {name: getattr(self, name) for name in GRAMMAR_FIELDS}
        return requested_grammar({**fields, "response_format": self.response_form})

    @property
    def form_path(self) -> str:
        """The path of the schema of the answer's form, if it has one."""
        field = self.grammar.field if self.grammar else ""
        if field == "structured_outputs":
            return f"{field}.json"
        if field != "response_format":
            return field
        own = self.engine_fields["structured_outputs"]
        if own != field:
            return f"{own}.schema"
        form = self.response_form
        return f"{own}.schema" if form["type"] == "json_object" else f"{own}.json_schema.schema"

    @property
    def response_form(self) -> Any:
        """The form of the answer's text, as the chat API's response_format."""
        return self.response_format

    @property
    def engine_fields(self) -> Mapping[str, str]:
        """ENGINE_FIELDS with the field that asks for a grammar."""
        try:
            field = self.grammar.field if self.grammar else ""
        except InvalidRequestError:  # which names its own field
            return self.ENGINE_FIELDS
        return {**self.ENGINE_FIELDS, "structured_outputs": self.ENGINE_FIELDS.get(field, field)}

    def shared_parameters(self, defaults: Mapping[str, Any]) -> dict[str, Any]:
        """Return the engine's parameters that mean the same in all APIs. Raises InvalidRequestError."""
        given = {name: getattr(self, name) for name in self.sampling_fields()}
        return {
            **defaults,
            **{name: value for name, value in given.items() if value is not None},
            "stop": self.stop,
            "structured_outputs": self.grammar.params if self.grammar else None,
            "output_kind": RequestOutputKind.DELTA if self.stream else RequestOutputKind.FINAL_ONLY,
        }

    def to_beam_search_params(self, max_tokens: int | None) -> BeamSearchParams | None:
        """Return the parameters of a beam search with so many new tokens at most; None to sample."""
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

    def cuts(self, context: int) -> list[Cut]:
        """Return the limits of the prompt's tokens. context: the most tokens of prompt and answer."""
        tokens = self.truncate_prompt_tokens
        if tokens is None:
            return []
        return [Cut(context - 1 if tokens == -1 else tokens, self.truncation_side or "left")]


R = TypeVar("R", bound=ApiRequest)


def parse_request(kind: type[R], body: Body, takes_pictures: bool = False) -> R:
    """Return the request in a JSON `body`. Raises ApiError 400, which names the field that is wrong.

    takes_pictures: the model takes those of a conversation.
    """
    if not takes_pictures:
        return read_json(kind, contiguous(body))
    if files := plain_files(body):
        cut_body = CutBody(body, files)
        with suppress(ApiError, InvalidRequestError):  # which the whole body may not give
            request = read_json(kind, cut_body.json, cut_body)
            if cut_body.all_taken:
                return request
    return read_json(kind, contiguous(body), CutBody(body, ()))


def read_json(kind: type[R], body: bytes | bytearray, cut_body: CutBody | None = None) -> R:
    """Return the request in a JSON `body`, which may be cut. Raises ApiError or InvalidRequestError.

    cut_body: has its pictures, for a model that takes some.
    """
    try:
        request = validate(kind, body, cut_body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        raise to_api_error(kind, first) from None
    if unknown := request.model_extra:
        routers = {ROUTER_FIELD: unknown.pop(ROUTER_FIELD)} if ROUTER_FIELD in unknown else {}
        unknown_fields.warn(unknown)
        unknown.clear()
        unknown.update(routers)
    request.check_combinations()
    return request


def validate(kind: type[R], body: bytes | bytearray, cut_body: CutBody | None) -> R:
    """Return the request in a JSON `body`. Raises ValidationError."""
    try:
        return kind.model_validate_json(body, context=fields.BodyContext(cut_body))
    except ValidationError as error:
        rewritten = with_whole_numbers(body, error)
        if rewritten is None:
            raise
    return kind.model_validate_json(rewritten, context=fields.BodyContext(cut_body))


def to_api_error(kind: type[ApiRequest], error: ErrorDetails) -> ApiError:
    field = shorten(".".join(str(step) for step in error["loc"]))
    match error["type"]:
        case "json_invalid":
            return ApiError(ErrorCode.INVALID_JSON, f"the body is not JSON: {error['msg']}")
        case "missing":
            message = kind.MISSING.get(field, f"{field} is missing")
            return ApiError(ErrorCode.MISSING_FIELD, message, param=field)
        case fields.UNSUPPORTED:
            return ApiError(ErrorCode.UNSUPPORTED_VALUE, f"{field} {error['msg']}", param=field)
        case "model_type" if not field:
            return ApiError(ErrorCode.INVALID_VALUE, "the body is not a JSON object")
        case _:
            return ApiError(ErrorCode.INVALID_VALUE, f"{field}: {shorten(error['msg'])}", param=field)
