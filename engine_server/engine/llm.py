"""Offline batches: all prompts in, all outputs back, in the prompts' order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import count, islice
from operator import mul
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec
from tqdm.auto import tqdm  # type: ignore[import-untyped]

from engine_server.engine.adapters import LoRARequest
from engine_server.engine.arg_utils import EngineArgs
from engine_server.engine.errors import InvalidRequestError
from engine_server.engine.inputs import PromptType, TokensPrompt
from engine_server.engine.llm_engine import LLMEngine
from engine_server.engine.outputs import (
    ClassificationRequestOutput,
    EmbeddingRequestOutput,
    PoolingRequestOutput,
    RequestOutput,
    ScoringOutput,
    ScoringRequestOutput,
)
from engine_server.engine.pooling_params import PoolingParams, PoolingTask
from engine_server.engine.sampling_params import RequestOutputKind, SamplingParams
from engine_server.engine.tokenizer import text_pair

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Prompts = PromptType | Sequence[PromptType]
Messages = list[dict[str, Any]]
Bar = bool | Callable[..., Any]  # whether to show progress, or what makes the bar
T = TypeVar("T")


class LLM:
    """vLLM's class of this name, over an LLMEngine in this process; `engine_args` are the fields of EngineArgs.

    Parameters are one for all prompts or a sequence with one for each. A request that can't be served raises
    InvalidRequestError before any has run, and none stays queued.
    """

    def __init__(self, model: str, **engine_args: Any) -> None:
        engine_args.setdefault("disable_log_stats", True)
        self.llm_engine = LLMEngine.from_engine_args(EngineArgs(model=model, **engine_args))
        self._request_ids = map(str, count())

    def generate(
        self,
        prompts: Prompts,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: Bar = True,
        lora_request: LoRARequest | None = None,
        priority: Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """Each prompt's completions, once all are finished."""
        prompts = as_list(prompts)
        params = [
            msgspec.structs.replace(one, output_kind=RequestOutputKind.FINAL_ONLY)
            for one in one_each("sampling_params", sampling_params or SamplingParams(), len(prompts))
        ]
        return cast(list[RequestOutput], self._run(prompts, params, use_tqdm, lora_request, priority))

    def chat(
        self,
        messages: Messages | Sequence[Messages],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: Bar = True,
        lora_request: LoRARequest | None = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: list[dict[Any, Any] | Callable[..., Any]] | None = None,
        chat_template_kwargs: dict[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation or several, through the model's chat template or the given one."""
        conversations: Any = [messages] if isinstance(messages[0], dict) else messages
        tokenizer = self.get_tokenizer()
        prompts: list[PromptType] = []
        for conversation in conversations:
            text: Any = tokenizer.apply_chat_template(
                conversation,
                tools=tools,
                chat_template=chat_template,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                tokenize=False,
                **(chat_template_kwargs or {}),
            )
            token_ids = tokenizer.encode(text, add_special_tokens=False)
            prompts.append(TokensPrompt(prompt_token_ids=token_ids, prompt=text))
        return self.generate(prompts, sampling_params, use_tqdm, lora_request)

    def encode(
        self,
        prompts: Prompts,
        pooling_params: PoolingParams | Sequence[PoolingParams] | None = None,
        *,
        truncate_prompt_tokens: int | None = None,
        use_tqdm: Bar = True,
        lora_request: LoRARequest | None = None,
        pooling_task: PoolingTask = "encode",
    ) -> list[PoolingRequestOutput[Any]]:
        """What a pooling model makes of each prompt, by a task that their parameters don't name themselves."""
        prompts = as_list(prompts)
        params = [
            msgspec.structs.replace(
                one,
                task=one.task or pooling_task,
                truncate_prompt_tokens=truncate_prompt_tokens or one.truncate_prompt_tokens,
            )
            for one in one_each("pooling_params", pooling_params or PoolingParams(), len(prompts))
        ]
        return cast(list[PoolingRequestOutput[Any]], self._run(prompts, params, use_tqdm, lora_request))

    def embed(self, prompts: Prompts, **options: Any) -> list[EmbeddingRequestOutput]:
        """Each prompt's embedding. `options` are those of `encode`."""
        return cast(list[EmbeddingRequestOutput], self.encode(prompts, **options, pooling_task="embed"))

    def classify(self, prompts: Prompts, **options: Any) -> list[ClassificationRequestOutput]:
        """Each prompt's score for each label. `options` are those of `encode`."""
        return cast(
            list[ClassificationRequestOutput], self.encode(prompts, **options, pooling_task="classify")
        )

    def score(
        self,
        data_1: str | list[str],
        data_2: str | list[str],
        /,
        *,
        pooling_params: PoolingParams | None = None,
        truncate_prompt_tokens: int | None = None,
        **options: Any,
    ) -> list[ScoringRequestOutput]:
        """How well each text of `data_1`, or its only one, fits that of `data_2`.

        A cross-encoder reads both as one prompt; of an embedding model's two vectors it is the cosine.
        `options` are those of `encode`.
        """
        seconds = [data_2] if isinstance(data_2, str) else data_2
        firsts = one_each("data_1", data_1[0] if len(data_1) == 1 else data_1, len(seconds))
        params = pooling_params or PoolingParams()
        pooling = self.llm_engine.get_model_config().pooling
        if pooling is None or pooling.num_labels is not None:
            pairs = [
                text_pair(self.get_tokenizer(), first, second, truncate_prompt_tokens)
                for first, second in zip(firsts, seconds, strict=True)
            ]
            scores = self.encode(pairs, params, **options, pooling_task="score")
            return cast(list[ScoringRequestOutput], scores)
        vectors = self.embed(
            [*firsts, *seconds],
            pooling_params=msgspec.structs.replace(params, normalize=True),
            truncate_prompt_tokens=truncate_prompt_tokens,
            **options,
        )
        return [
            ScoringRequestOutput(
                first.request_id,
                ScoringOutput(sum(map(mul, first.outputs.embedding, second.outputs.embedding))),
                first.prompt_token_ids + second.prompt_token_ids,
            )
            for first, second in zip(vectors, vectors[len(seconds) :], strict=False)
        ]

    def get_tokenizer(self) -> PreTrainedTokenizerBase:
        return self.llm_engine.get_tokenizer()

    def _run(
        self,
        prompts: Sequence[PromptType],
        params: Sequence[SamplingParams | PoolingParams],
        use_tqdm: Bar,
        lora_request: LoRARequest | None = None,
        priority: Sequence[int] | None = None,
    ) -> list[RequestOutput | PoolingRequestOutput[Any]]:
        engine, outputs = self.llm_engine, {}
        priorities = one_each("priority", priority or 0, len(prompts))
        request_ids = list(islice(self._request_ids, len(prompts)))
        try:
            for each in zip(request_ids, prompts, params, priorities, strict=True):
                request_id, prompt, one, urgency = each
                engine.add_request(request_id, prompt, one, lora_request=lora_request, priority=urgency)
            make_bar = use_tqdm if callable(use_tqdm) else tqdm
            with make_bar(total=len(prompts), desc="Processed prompts", disable=not use_tqdm) as bar:
                while engine.has_unfinished_requests():
                    for output in engine.step():
                        if output.finished:
                            outputs[output.request_id] = output
                            bar.update()
        except BaseException:
            engine.abort_request(request_ids)
            raise
        return [outputs[request_id] for request_id in request_ids]


def as_list(prompts: Prompts) -> Sequence[PromptType]:
    """One prompt is a batch of one."""
    return [prompts] if isinstance(prompts, str | Mapping) else prompts


def one_each(name: str, values: T | Sequence[T], count: int) -> Sequence[T]:
    """A value for each of `count` prompts."""
    if isinstance(values, str) or not isinstance(values, Sequence):
        return [values] * count
    if len(values) != count:
        raise InvalidRequestError(f"{name} has {len(values)} entries for {count} prompts", name)
    return values
