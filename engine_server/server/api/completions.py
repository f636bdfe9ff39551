"""POST /v1/completions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from fastapi import APIRouter, Request
from pydantic import Field, PlainValidator
from starlette.responses import Response

from engine_server.contract.wire.errors import ErrorCode
from engine_server.requests.validation import MAX_INT32
from engine_server.server.api import openapi
from engine_server.server.api.completion_renderer import Completion, CompletionRenderer
from engine_server.server.api.create_answer import create_answer
from engine_server.server.api.fields import only, prompt_list
from engine_server.server.api.generation_request import GenerationRequest, parse_request
from engine_server.server.generation.prompts import TextSource
from engine_server.server.http.errors import ApiError

if TYPE_CHECKING:
    from engine_server.engine.beam_search import BeamSearchParams
    from engine_server.server.conversation.layout import Layout
    from engine_server.server.engine_host import EngineHost
    from engine_server.server.generation.plan import AnswerIdentity
    from engine_server.server.loaded_model import LoadedModel
    from engine_server.server.settings import ApiSettings

DEFAULT_MAX_TOKENS = 16


class CompletionRequest(GenerationRequest):
    """The body of a request."""

    ID_PREFIX: ClassVar[str] = "cmpl-"
    MISSING: ClassVar[Mapping[str, str]] = {
        "prompt": "Either prompt or prompt_embeds must be provided and non-empty."
    }

    prompt: Annotated[list[str] | list[list[int]], PlainValidator(prompt_list)]
    logprobs: Annotated[int, Field(ge=-1, le=MAX_INT32)] | None = None
    echo: bool | None = None

    suffix: Annotated[Any, only("")] = None
    prompt_embeds: Annotated[Any, only([])] = None
    thinking_token_budget: Annotated[Any, only(-1)] = None

    @property
    def prompt_only(self) -> bool:
        return bool(self.echo) and self.max_tokens == 0

    def check_combinations(self) -> None:
        super().check_combinations()
        if self.use_beam_search and self.prompt_only:
            raise ApiError(
                ErrorCode.INVALID_VALUE,
                "max_tokens is 0; a beam search generates at least 1",
                param="max_tokens",
            )
        if self.use_beam_search and self.echo and self.logprobs is not None:
            raise ApiError(
                ErrorCode.INVALID_VALUE,
                "a beam search has no log-probabilities of the prompt",
                param="logprobs",
            )

    def sampling_parameters(self, defaults: Mapping[str, Any]) -> dict[str, Any]:
        parameters = self.shared_parameters(defaults)
        parameters |= {"max_tokens": self._max_tokens(defaults), "logprobs": self.logprobs}
        if self.echo and parameters.get("prompt_logprobs") is None:
            parameters["prompt_logprobs"] = self.logprobs
        return parameters

    def beam_search_params(self, defaults: Mapping[str, Any]) -> BeamSearchParams | None:
        return self.to_beam_search_params(self._max_tokens(defaults))

    def _max_tokens(self, defaults: Mapping[str, Any]) -> int | None:
        if self.max_tokens is None:
            default: int | None = defaults.get("max_tokens", DEFAULT_MAX_TOKENS)
            return default
        return 1 if self.prompt_only else self.max_tokens

    def source(self, settings: ApiSettings, layout: Layout, context: int) -> TextSource:
        return TextSource(
            texts=self.prompt,
            add_special_tokens=self.add_special_tokens is not False,
            repeated=bool(self.echo),
            most_tokens=None if self.cuts(context) else context,
            cuts=self.cuts(context),
            cache_salt=self.cache_salt,
        )


def renderer(model: LoadedModel, body: CompletionRequest, identity: AnswerIdentity) -> CompletionRenderer:
    return CompletionRenderer(
        identity,
        body.answer_options(model.settings),
        echo=bool(body.echo),
        logprobs=body.logprobs is not None,
        skips_special=body.skip_special_tokens is not False,
        texts=model.token_texts,
    )


def routes(host: EngineHost) -> APIRouter:
    router = APIRouter()

    @router.post("/v1/completions", response_model=None)
    @openapi.body(CompletionRequest, Completion, streamed=True)
    async def post_completions(request: Request) -> Response:
        body = parse_request(CompletionRequest, await request.body())
        return await create_answer(host.model, body, request.headers, renderer)

    return router
