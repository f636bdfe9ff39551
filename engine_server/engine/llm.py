"""Offline batches: all prompts in, all outputs back, in the prompts' order."""

from collections.abc import Callable, Mapping, Sequence
from itertools import count, islice
from typing import Any, TypeVar

import msgspec
from tqdm.auto import tqdm  # type: ignore[import-untyped]

from engine_server.config import UsageContext
from engine_server.engine.beam_search import BeamSearchOutput, BeamSearchParams, beam_search
from engine_server.engine.engine_args import EngineArgs
from engine_server.engine.input.tokenizer import text_pair
from engine_server.engine.llm_engine import LLMEngine
from engine_server.requests.adapters import LoRARequest
from engine_server.requests.errors import InvalidRequestError
from engine_server.requests.outputs import (
    ClassificationRequestOutput,
    EmbeddingRequestOutput,
    PoolingRequestOutput,
    RequestOutput,
    ScoringRequestOutput,
)
from engine_server.requests.pooling_params import PoolingParams, PoolingTask
from engine_server.requests.prompts import PromptType, TokensPrompt
from engine_server.requests.sampling_params import RequestOutputKind, SamplingParams

Prompts = PromptType | Sequence[PromptType]
Conversation = list[dict[str, Any]]
T = TypeVar("T")


class LLM:
    """vLLM's class of this name: an LLMEngine, which takes EngineArgs' fields, and everything as a batch.

    Parameters are one for all prompts, or a sequence with one for each. `use_tqdm` shows a bar, or is what makes one.
    A request that can't be served raises InvalidRequestError before any has run, and none stays queued.
    """

    def __init__(self, model: str, **engine_args: Any) -> None:
        args = EngineArgs(model=model, **{"disable_log_stats": True, **engine_args})
        engine = self.llm_engine = LLMEngine.from_engine_args(args, UsageContext.LLM_CLASS)
        self.get_tokenizer, self.reset_prefix_cache = engine.get_tokenizer, engine.reset_prefix_cache
        self.sleep, self.wake_up, self.is_sleeping = engine.sleep, engine.wake_up, engine.is_sleeping
        self.start_profile, self.stop_profile = engine.start_profile, engine.stop_profile
        self._request_ids = map(str, count())

    def generate(
        self,
        prompts: Prompts,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool | Callable[..., Any] = True,
        lora_request: LoRARequest | None = None,
        priority: Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """Each prompt's completions, once all are finished."""
        prompts = as_list(prompts)
        params = [
            msgspec.structs.replace(one, output_kind=RequestOutputKind.FINAL_ONLY)
            for one in one_each("sampling_params", sampling_params or SamplingParams(), len(prompts))
        ]
        return self._run(prompts, params, use_tqdm, lora_request, priority or 0)

    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool | Callable[..., Any] = True,
        lora_request: LoRARequest | None = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: list[Any] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation or several, as the model's chat template or the given one writes them."""
        tokenizer, prompts = self.get_tokenizer(), []
        conversations: Any = [messages] if isinstance(messages[0], dict) else messages
        for conversation in conversations:
            text: Any = tokenizer.apply_chat_template(
                conversation, tools=tools, chat_template=chat_template, add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message, tokenize=False, **(chat_template_kwargs or {}),
            )  # fmt: skip
            token_ids = tokenizer.encode(text, add_special_tokens=False)
            prompts.append(TokensPrompt(prompt_token_ids=token_ids, prompt=text))
        return self.generate(prompts, sampling_params, use_tqdm, lora_request)

    def beam_search(self, prompts: Prompts, params: BeamSearchParams) -> list[BeamSearchOutput]:
        """The `beam_width` best continuations of each prompt."""
        return beam_search(self.llm_engine, as_list(prompts), params)

    def encode(
        self,
        prompts: Prompts,
        pooling_params: PoolingParams | Sequence[PoolingParams] | None = None,
        *,
        truncate_prompt_tokens: int | None = None,
        use_tqdm: bool | Callable[..., Any] = True,
        lora_request: LoRARequest | None = None,
        pooling_task: PoolingTask = "encode",
    ) -> list[PoolingRequestOutput[Any]]:
        """What a pooling model makes of each prompt, by the task of its parameters or else by `pooling_task`."""
        prompts = as_list(prompts)
        cut = {} if truncate_prompt_tokens is None else {"truncate_prompt_tokens": truncate_prompt_tokens}
        params = [
            msgspec.structs.replace(one, task=one.task or pooling_task, **cut)
            for one in one_each("pooling_params", pooling_params or PoolingParams(), len(prompts))
        ]
        return self._run(prompts, params, use_tqdm, lora_request)

    def embed(self, prompts: Prompts, **options: Any) -> list[EmbeddingRequestOutput]:
        """Each prompt's embedding; `options` as `encode` takes them."""
        embeddings: list[Any] = self.encode(prompts, **options, pooling_task="embed")
        return embeddings

    def classify(self, prompts: Prompts, **options: Any) -> list[ClassificationRequestOutput]:
        """Each prompt's score for each label; `options` as `encode` takes them."""
        scores: list[Any] = self.encode(prompts, **options, pooling_task="classify")
        return scores

    def score(
        self,
        data_1: str | list[str],
        data_2: str | list[str],
        /,
        *,
        truncate_prompt_tokens: int | None = None,
        **options: Any,
    ) -> list[ScoringRequestOutput]:
        """How well each text of `data_1`, or its only one, fits that of `data_2`, by a cross-encoder.

        `options` as `encode` takes them.
        """
        seconds = [data_2] if isinstance(data_2, str) else data_2
        firsts = one_each("data_1", data_1[0] if len(data_1) == 1 else data_1, len(seconds))
        context = self.llm_engine.get_model_config().max_model_len
        longest = context if truncate_prompt_tokens == -1 else truncate_prompt_tokens
        pairs = [
            text_pair(self.get_tokenizer(), *texts, longest) for texts in zip(firsts, seconds, strict=True)
        ]
        scores: list[Any] = self.encode(pairs, **options, pooling_task="score")
        return scores

    def _run(
        self,
        prompts: Sequence[PromptType],
        params: Sequence[SamplingParams | PoolingParams],
        use_tqdm: bool | Callable[..., Any],
        lora_request: LoRARequest | None,
        priority: int | Sequence[int] = 0,
    ) -> list[Any]:
        engine, outputs = self.llm_engine, {}
        request_ids = list(islice(self._request_ids, len(prompts)))
        each = zip(request_ids, prompts, params, one_each("priority", priority, len(prompts)), strict=True)
        make_bar = use_tqdm if callable(use_tqdm) else tqdm
        try:
            for request_id, prompt, one, urgency in each:
                engine.add_request(request_id, prompt, one, lora_request=lora_request, priority=urgency)
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
