"""The request fields that completions and chat share, and their validation.

Unknown fields are ignored, as clients expect. Known fields that aren't supported are declared with `only`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, ValidationError
from pydantic_core import ErrorDetails

from engine_server.contract.errors import ErrorCode
from engine_server.requests.sampling_params import RequestOutputKind, SamplingParams
from engine_server.server.api import fields
from engine_server.server.api.fields import MAX_CHOICES, only, stop_strings
from engine_server.server.http.errors import ApiError

# Fields that SamplingParams has by the same name.
SAMPLING_FIELDS = (
    "n", "best_of", "presence_penalty", "frequency_penalty", "repetition_penalty", "temperature", "top_p", "top_k",
    "min_p", "seed", "logit_bias", "bad_words", "allowed_token_ids", "stop_token_ids",
    "min_tokens", "ignore_eos", "skip_special_tokens", "include_stop_str_in_output",
)  # fmt: skip


class ApiRequest(BaseModel):
    """A request's body. Null means the default, everywhere."""

    model_config = ConfigDict(strict=True)

    def check_combinations(self) -> None:
        """Raise ApiError for fields that exclude each other."""


class StreamOptions(BaseModel):
    """Options of a streamed answer."""

    model_config = ConfigDict(strict=True)

    include_usage: bool | None = None
    continuous_usage_stats: Annotated[Any, only(False)] = None


class GenerationRequest(ApiRequest):
    """The shared fields."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: Annotated[list[str], PlainValidator(stop_strings)] = []
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[int, float] | None = None

    # Beyond OpenAI's API, with vLLM's names.
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

    def check_combinations(self) -> None:
        if self.stream_options is not None and not self.stream:
            raise ApiError(400, "stream_options needs stream to be true", param="stream_options")

    def to_sampling_params(
        self, defaults: Mapping[str, Any], max_tokens: int | None, logprobs: int | None
    ) -> SamplingParams:
        """Return the engine's parameters. Raises InvalidRequestError for values out of range.

        defaults: the model's own, for fields that the request leaves out.
        """
        given = {name: getattr(self, name, None) for name in SAMPLING_FIELDS}
        parameters = {**defaults, **{name: value for name, value in given.items() if value is not None}}
        parameters |= {
            "stop": self.stop,
            "max_tokens": max_tokens,
            "logprobs": logprobs,
            "output_kind": RequestOutputKind.DELTA if self.stream else RequestOutputKind.FINAL_ONLY,
        }
        return SamplingParams(**parameters)


R = TypeVar("R", bound=ApiRequest)


def parse_request(kind: type[R], body: bytes) -> R:
    """Return the request in a JSON `body`. Raises ApiError 400, which names the field that is wrong."""
    try:
        request = kind.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        raise to_api_error(first) from None
    request.check_combinations()
    return request


def to_api_error(error: ErrorDetails) -> ApiError:
    field = ".".join(str(step) for step in error["loc"])
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
            return ApiError(400, f"{field}: {error['msg']}", param=field, code=ErrorCode.INVALID_VALUE)
