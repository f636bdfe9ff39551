"""Scores of pairs of texts: a cross-encoder's, or the cosine of an embedding model's vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from engine_server.requests.errors import InvalidRequestError
from engine_server.requests.pooling_params import PoolingParams
from engine_server.server.api.pooling.encode import Batch, encode
from engine_server.server.api.pooling.named_prompts import prompt_for
from engine_server.server.api.pooling.prompts import (
    NamedPrompt,
    check_lengths,
    entry,
    input_tokens,
    pair_prompts,
    tokens,
)

if TYPE_CHECKING:
    from engine_server.engine.input.tokenizer import Truncation
    from engine_server.requests.pooling_params import PoolingTask
    from engine_server.server.generation.request_context import RequestContext
    from engine_server.server.loaded_model import LoadedModel


@dataclass(frozen=True, slots=True)
class Scoring:
    """Texts to compare: the only one of `first` with each of `second`, or one by one."""

    request_id: str
    first: list[str]
    second: list[str]
    # The request's names of both.
    fields: tuple[str, str]
    truncation: Truncation
    use_activation: bool | None
    context: RequestContext
    # What makes a match; None: the model's default.
    instruction: str | None

    def batch(self, prompts: Sequence[NamedPrompt], task: PoolingTask) -> Batch:
        params = PoolingParams(task=task, use_activation=self.use_activation, timeout=self.context.timeout)
        return Batch(self.request_id, prompts, params, self.context)


class Scores(NamedTuple):
    """The scores of pairs, and how many tokens were computed for them."""

    values: list[float]
    num_tokens: int


async def score(model: LoadedModel, scoring: Scoring) -> Scores:
    return await (cross_scores(model, scoring) if "score" in model.tasks else cosines(model, scoring))


async def cross_scores(model: LoadedModel, scoring: Scoring) -> Scores:
    """Let a cross-encoder read both texts of a pair together."""
    first = scoring.first * (len(scoring.second) if len(scoring.first) == 1 else 1)
    pairs = list(zip(first, scoring.second, strict=True))
    prompts = await pair_prompts(model, pairs, scoring.truncation, scoring.fields[1], scoring.instruction)
    batch = scoring.batch(prompts, "score")
    outputs = await encode(model.engine, batch)
    return Scores([output.outputs.score for output in outputs], batch.num_tokens)


async def cosines(model: LoadedModel, scoring: Scoring) -> Scores:
    """Embed each text alone, and compare the vectors."""
    if scoring.instruction is not None:
        raise InvalidRequestError("instruction is set; a model of embeddings takes none", "instruction")
    limit = scoring.truncation
    of_second = limit._replace(longest_first=limit.longest_second)
    query, document = (prompt_for(model.pooling, kind) for kind in ("query", "document"))
    prompts = [
        *await text_prompts(model, scoring.first, scoring.fields[0], limit, query),
        *await text_prompts(model, scoring.second, scoring.fields[1], of_second, document),
    ]
    check_lengths(model, prompts)
    batch = scoring.batch(prompts, "embed")
    outputs = await encode(model.engine, batch)
    vectors = np.array([output.outputs.embedding for output in outputs], np.float64)
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), np.finfo(np.float32).tiny)
    first, second = vectors[: len(scoring.first)], vectors[len(scoring.first) :]
    return Scores((first * second).sum(1).tolist(), batch.num_tokens)


async def text_prompts(
    model: LoadedModel, texts: list[str], field: str, truncation: Truncation, before: str
) -> list[NamedPrompt]:
    token_ids = await input_tokens(model, texts, field, truncation, before=before)
    return [NamedPrompt(tokens(ids), entry(field, texts, index)) for index, ids in enumerate(token_ids)]
