"""POST /score, which compares pairs of texts, and /rerank, which orders documents by their relevance to a query."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Request
from pydantic import Field, PlainValidator
from pydantic_core import PydanticCustomError

from engine_server.contract.base.bounds import PROMPTS
from engine_server.contract.wire.errors import ErrorCode
from engine_server.engine.input.tokenizer import Truncation
from engine_server.requests.validation import MAX_INT32
from engine_server.server.api import openapi
from engine_server.server.api.context import request_context
from engine_server.server.api.fields import check_bound
from engine_server.server.api.generation_request import parse_request
from engine_server.server.api.openai_answer import PromptUsage, prompt_response
from engine_server.server.api.pooling.request import PoolingRequest
from engine_server.server.api.pooling.scoring import Scores, Scoring, score
from engine_server.server.api.tasks import needs_task
from engine_server.server.http.errors import ApiError

if TYPE_CHECKING:
    from starlette.responses import Response

    from engine_server.server.engine_host import EngineHost
    from engine_server.server.loaded_model import LoadedModel

# The names of the two texts, in vLLM's API.
SCORE_FIELDS = (("queries", "documents"), ("text_1", "text_2"), ("data_1", "data_2"), ("queries", "items"))


def text(value: object) -> str:
    """Return a text, which may be the only content of an object."""
    inner = value.get("text") if isinstance(value, dict) else value
    if not isinstance(inner, str):
        raise PydanticCustomError("text", "takes a text, or an object with one as text")
    return inner


def text_list(value: object) -> list[str] | None:
    """Return one text or several as a list."""
    if value is None:
        return None
    if not isinstance(value, list):
        return [text(value)]
    check_bound(PROMPTS, len(value))
    return [text(one) for one in value]


Text = Annotated[str, PlainValidator(text)]
Texts = Annotated[list[str] | None, PlainValidator(text_list)]
Limit = Annotated[int, Field(ge=0, le=MAX_INT32)] | None


class ScoringRequest(PoolingRequest):
    """The fields of both."""

    use_activation: bool | None = None
    # For a model whose template takes one.
    instruction: str | None = None
    max_tokens_per_query: Limit = None
    max_tokens_per_doc: Limit = None

    def limits(self, context: int) -> Truncation:
        """Return the limits of a pair of texts; a limit of zero tokens is none."""
        return self.truncation(context)._replace(
            longest_first=self.max_tokens_per_query or None, longest_second=self.max_tokens_per_doc or None
        )


class ScoreRequest(ScoringRequest):
    """The body of a request for scores: a query with each document, or pair by pair."""

    queries: Texts = None
    documents: Texts = None
    items: Texts = None
    text_1: Texts = None
    text_2: Texts = None
    data_1: Texts = None
    data_2: Texts = None

    def fields(self) -> tuple[str, str]:
        """Return the names of the two fields with texts."""
        for pair in SCORE_FIELDS:
            if all(getattr(self, name) is not None for name in pair):
                return pair
        raise ApiError(
            ErrorCode.MISSING_FIELD,
            "the texts are missing: queries and documents, or text_1 and text_2",
            param="queries",
        )

    def check_combinations(self) -> None:
        super().check_combinations()
        names = self.fields()
        first, second = (getattr(self, name) for name in names)
        if len(first) not in (1, len(second)) or not second:
            raise ApiError(
                ErrorCode.INVALID_VALUE,
                f"{names[0]} has {len(first)} entries and {names[1]} {len(second)}; they take one and any number, or "
                "the same number",
                param=names[0],
            )


class RerankRequest(ScoringRequest):
    """The body of a request to rank documents, in Jina's and Cohere's form."""

    query: Text
    documents: Texts
    top_n: Annotated[int, Field(ge=0)] | None = None
    return_documents: bool | None = None

    def check_combinations(self) -> None:
        super().check_combinations()
        if not self.documents:
            message = "documents is empty; it takes at least one text"
            raise ApiError(ErrorCode.INVALID_VALUE, message, param="documents")


class Score(msgspec.Struct):
    """The score of a pair of texts."""

    index: int
    score: float
    object: Literal["score"] = "score"


class ScoreList(msgspec.Struct):
    """An answer with scores."""

    id: str
    created: int
    model: str
    data: list[Score]
    usage: PromptUsage
    object: Literal["list"] = "list"


class Document(msgspec.Struct):
    """A document as it was given."""

    text: str


class Ranked(msgspec.Struct, omit_defaults=True):
    """A document's place in the request and its relevance."""

    index: int
    relevance_score: float
    document: Document | None = None


class Ranking(msgspec.Struct):
    """An answer with documents, the most relevant first. `meta` has Cohere's names for the usage."""

    id: str
    model: str
    results: list[Ranked]
    usage: PromptUsage
    meta: dict[str, Any]


def routes(host: EngineHost) -> APIRouter:
    router = APIRouter(dependencies=[needs_task(host, "score", "embed")])

    @router.post("/score", response_model=None)
    @router.post("/v1/score", response_model=None)
    @openapi.body(ScoreRequest, ScoreList)
    async def post_score(request: Request) -> Response:
        body = parse_request(ScoreRequest, await request.body())
        return await create_scores(host.model, body, request.headers)

    @router.post("/rerank", response_model=None)
    @router.post("/v1/rerank", response_model=None)
    @router.post("/v2/rerank", response_model=None)
    @openapi.body(RerankRequest, Ranking)
    async def post_rerank(request: Request) -> Response:
        body = parse_request(RerankRequest, await request.body())
        return await create_ranking(host.model, body, request.headers)

    return router


async def create_scores(model: LoadedModel, request: ScoreRequest, headers: Mapping[str, str]) -> Response:
    context, created = request_context(model, request, headers), int(time.time())
    first, second = request.fields()
    scoring = Scoring(
        request.answer_id("score-"),
        getattr(request, first),
        getattr(request, second),
        (first, second),
        request.limits(model.max_model_len),
        request.use_activation,
        context,
        request.instruction,
    )
    scores = await score(model, scoring)
    data = [Score(index, value) for index, value in enumerate(scores.values)]
    answer = ScoreList(
        scoring.request_id, created, context.served.name, data, PromptUsage.of(scores.num_tokens)
    )
    return prompt_response(answer, scores.num_tokens, context.served.fingerprint)


async def create_ranking(model: LoadedModel, request: RerankRequest, headers: Mapping[str, str]) -> Response:
    context, documents = request_context(model, request, headers), request.documents or []
    scoring = Scoring(
        request.answer_id("rerank-"),
        [request.query],
        documents,
        ("query", "documents"),
        request.limits(model.max_model_len),
        request.use_activation,
        context,
        request.instruction,
    )
    scores = await score(model, scoring)
    results = rank(scores, documents, request)
    meta = {
        "api_version": {"version": "2"},
        "billed_units": {"search_units": 1},
        "tokens": {"input_tokens": scores.num_tokens},
    }
    answer = Ranking(
        scoring.request_id, context.served.name, results, PromptUsage.of(scores.num_tokens), meta
    )
    return prompt_response(answer, scores.num_tokens, context.served.fingerprint)


def rank(scores: Scores, documents: list[str], request: RerankRequest) -> list[Ranked]:
    """Return the most relevant documents, of equal ones the first in the request."""
    order = sorted(range(len(documents)), key=lambda index: -scores.values[index])
    shown = request.return_documents is not False
    return [
        Ranked(index, scores.values[index], Document(documents[index]) if shown else None)
        for index in order[: request.top_n or None]
    ]
