"""The requests of OpenAI's API, checked field by field.

Fields that are unknown are ignored, as clients expect. Fields that are known but ask for what isn't supported
are declared with `only`, so that they are refused by name and the answer is never silently another.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainValidator, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from engine_server.contract.errors import ErrorCode
from engine_server.requests.sampling_params import MAX_LOGPROBS, RequestOutputKind, SamplingParams
from engine_server.server.errors import ApiError

MOST_CHOICES = 128  # OpenAI's own limit
PASSED_ON = (
    "n", "best_of", "presence_penalty", "frequency_penalty", "repetition_penalty", "temperature", "top_p", "top_k",
    "min_p", "seed", "logit_bias", "bad_words", "allowed_token_ids", "stop_token_ids",
    "min_tokens", "ignore_eos", "skip_special_tokens", "include_stop_str_in_output",
)  # fmt: skip


def only(*neutral: object) -> AfterValidator:
    """A field of which nothing but these values, or null, is supported."""

    def check(value: object) -> object:
        if value is None or value in neutral:
            return value
        shown = f"; only {neutral[0]!r} is" if neutral else ""
        raise PydanticCustomError("unsupported", "is not supported{shown}", {"shown": shown})

    return AfterValidator(check)


def _stop(value: object) -> list[str]:
    if value is None:
        return []
    strings = [value] if isinstance(value, str) else value
    if not isinstance(strings, list) or not all(isinstance(text, str) for text in strings):
        raise PydanticCustomError("stop", "takes a string or a list of strings")
    return strings


def _prompt(value: object) -> list[str] | list[list[int]]:
    """A prompt in any of its four forms, as a list of prompts."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, list):
        if not value:
            no_tokens: list[list[int]] = [[]]
            return no_tokens
        if all(isinstance(item, str) for item in value):
            return value
        if all(type(item) is int for item in value):
            return [value]
        if all(isinstance(item, list) and all(type(token) is int for token in item) for item in value):
            return value
    raise PydanticCustomError(
        "prompt", "takes a string, a list of strings, a list of token ids or a list of lists of token ids"
    )


def _content(value: object) -> str:
    """A message's text; several text parts are joined by line ends."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise PydanticCustomError("content", "takes a string or a list of text parts")
    texts = []
    for number, part in enumerate(value):
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise PydanticCustomError(
                "content",
                "part {number} is not a text part, with a type of text and a text",
                {"number": number},
            )
        texts.append(part["text"])
    return "\n".join(texts)


class StreamOptions(BaseModel):
    model_config = ConfigDict(strict=True)

    include_usage: bool | None = None
    continuous_usage_stats: Annotated[Any, only(False)] = None


class GenerationRequest(BaseModel):
    """What both endpoints take. Null means the default, everywhere."""

    model_config = ConfigDict(strict=True)

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: Annotated[list[str], PlainValidator(_stop)] = []
    n: Annotated[int, Field(ge=1, le=MOST_CHOICES)] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[int, float] | None = None

    # beyond OpenAI's API, with vLLM's names
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    bad_words: list[str] | None = None
    allowed_token_ids: list[int] | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    stop_token_ids: list[int] | None = None
    skip_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None

    prompt_logprobs: Annotated[Any, only()] = None
    truncate_prompt_tokens: Annotated[Any, only()] = None
    use_beam_search: Annotated[Any, only(False)] = None
    priority: Annotated[Any, only(0)] = None
    response_format: Annotated[Any, only({"type": "text"})] = None
    structured_outputs: Annotated[Any, only()] = None
    guided_json: Annotated[Any, only()] = None
    guided_regex: Annotated[Any, only()] = None
    guided_choice: Annotated[Any, only()] = None
    guided_grammar: Annotated[Any, only()] = None

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    def sampling(self, max_tokens: int | None, logprobs: int | None) -> SamplingParams:
        given = {name: getattr(self, name, None) for name in PASSED_ON}
        return SamplingParams(
            **{name: value for name, value in given.items() if value is not None},
            stop=self.stop,
            max_tokens=max_tokens,
            logprobs=logprobs,
            output_kind=RequestOutputKind.DELTA if self.stream else RequestOutputKind.FINAL_ONLY,
        )


class CompletionRequest(GenerationRequest):
    prompt: Annotated[list[str] | list[list[int]], PlainValidator(_prompt)]
    logprobs: int | None = None

    best_of: Annotated[int, Field(ge=1, le=MOST_CHOICES)] | None = None
    echo: Annotated[Any, only(False)] = None
    suffix: Annotated[Any, only("")] = None

    def sampling_params(self) -> SamplingParams:
        return self.sampling(16 if self.max_tokens is None else self.max_tokens, self.logprobs)


class Message(BaseModel):
    model_config = ConfigDict(strict=True)

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[str, PlainValidator(_content)]
    name: str | None = None

    tool_calls: Annotated[Any, only([])] = None
    function_call: Annotated[Any, only()] = None
    audio: Annotated[Any, only()] = None


class ChatCompletionRequest(GenerationRequest):
    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None

    tools: Annotated[Any, only([])] = None
    tool_choice: Annotated[Any, only("none", "auto")] = None
    functions: Annotated[Any, only([])] = None
    function_call: Annotated[Any, only("none", "auto")] = None
    modalities: Annotated[Any, only(["text"])] = None
    audio: Annotated[Any, only()] = None
    web_search_options: Annotated[Any, only()] = None
    chat_template: Annotated[Any, only()] = None
    chat_template_kwargs: Annotated[Any, only({})] = None
    documents: Annotated[Any, only([])] = None

    def sampling_params(self) -> SamplingParams:
        limit = self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens
        return self.sampling(limit, (self.top_logprobs or 0) if self.logprobs else None)


R = TypeVar("R", bound=GenerationRequest)


def parse(kind: type[R], body: bytes) -> R:
    """The request in `body`, or a 400 that names the field."""
    try:
        request = kind.model_validate_json(body)
    except ValidationError as error:
        raise _refusal(
            error.errors(include_url=False, include_input=False, include_context=False)[0]
        ) from None
    if request.stream_options is not None and not request.stream:
        raise ApiError(400, "stream_options needs stream to be true", param="stream_options")
    if isinstance(request, ChatCompletionRequest) and request.top_logprobs and not request.logprobs:
        raise ApiError(400, "top_logprobs needs logprobs to be true", param="top_logprobs")
    return request


def _refusal(error: ErrorDetails) -> ApiError:
    field = ".".join(str(step) for step in error["loc"])
    match error["type"]:
        case "json_invalid":
            return ApiError(400, f"the body is not JSON: {error['msg']}", code=ErrorCode.INVALID_JSON)
        case "missing":
            return ApiError(400, f"{field} is missing", param=field, code=ErrorCode.MISSING_FIELD)
        case "unsupported":
            return ApiError(400, f"{field} {error['msg']}", param=field, code=ErrorCode.UNSUPPORTED_VALUE)
        case "model_type" if not field:
            return ApiError(400, "the body is not a JSON object")
        case _:
            return ApiError(400, f"{field}: {error['msg']}", param=field, code=ErrorCode.INVALID_VALUE)
