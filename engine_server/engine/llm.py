"""Offline batches: outputs for a list of prompts, in the order of the prompts."""

from collections.abc import Callable, Mapping, Sequence
from itertools import count, islice
from typing import Any, TypeVar

import msgspec
from tqdm.auto import tqdm  # type: ignore[import-untyped]

from engine_server.config import ModelConfig, UsageContext
from engine_server.engine.beam_search import BeamSearchOutput, BeamSearchParams, beam_search
from engine_server.engine.compat import refuse
from engine_server.engine.conversation.chat import Messages, chat_prompts
from engine_server.engine.engine_args import EngineArgs
from engine_server.engine.input.text_pairs import check_template, pair_prompts
from engine_server.engine.input.tokenizer import Truncation
from engine_server.engine.llm_engine import LLMEngine
from engine_server.requests import validation as valid
from engine_server.requests.adapters import LoRARequest, PromptAdapterRequest
from engine_server.requests.errors import InvalidRequestError
from engine_server.requests.outputs import (
    ClassificationRequestOutput,
    EmbeddingRequestOutput,
    PoolingRequestOutput,
    RequestOutput,
    ScoringRequestOutput,
)
from engine_server.requests.pooling_params import PoolingParams, PoolingTask
from engine_server.requests.prompts import PromptType
from engine_server.requests.sampling_params import RequestOutputKind, SamplingParams
from engine_server.telemetry.metrics_snapshot import Metric, read_metrics

Prompts = PromptType | Sequence[PromptType]
T = TypeVar("T")


class LLM:
    """vLLM's class of this name: an LLMEngine, which takes EngineArgs' fields, for batches.

    Parameters are one object for all prompts, or a sequence with one for each. `use_tqdm` shows a progress bar, or is
    the function that makes one. A request that can't be served raises InvalidRequestError before any request runs,
    and no request stays queued.
    """

    def __init__(self, model: str, **engine_args: Any) -> None:
        args = EngineArgs(model=model, **{"disable_log_stats": True, **engine_args})
        engine = self.llm_engine = LLMEngine.from_engine_args(args, UsageContext.LLM_CLASS)
        self.get_tokenizer, self.reset_prefix_cache = engine.get_tokenizer, engine.reset_prefix_cache
        self.sleep, self.wake_up, self.is_sleeping = engine.sleep, engine.wake_up, engine.is_sleeping
        self.start_profile, self.stop_profile = engine.start_profile, engine.stop_profile
        self.collective_rpc = engine.collective_rpc
        self._request_ids = map(str, count())

    @property
    def model_config(self) -> ModelConfig:
        return self.llm_engine.get_model_config()

    def get_default_sampling_params(self) -> SamplingParams:
        """Return the parameters of a request without any: those of the model's generation_config.json."""
        return SamplingParams(**self.model_config.get_diff_sampling_param())

    def get_metrics(self) -> list[Metric]:
        """Return the values of the Prometheus metrics of this process's engines."""
        return read_metrics()

    def generate(
        self,
        prompts: Prompts,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool | Callable[..., Any] = True,
        lora_request: LoRARequest | None = None,
        priority: int | Sequence[int] | None = None,
        prompt_adapter_request: PromptAdapterRequest | None = None,
    ) -> list[RequestOutput]:
        """Return each prompt's completions, once all are finished.

        sampling_params: None: those of get_default_sampling_params. priority: a lower number runs first, where the
        scheduling policy is priority.
        """
        batch = as_list(prompts)
        if sampling_params is None:
            sampling_params = self.get_default_sampling_params()
        params = [
            msgspec.structs.replace(one, output_kind=RequestOutputKind.FINAL_ONLY)
            for one in one_each("sampling_params", sampling_params, len(batch))
        ]
        priorities = 0 if priority is None else priority
        return self._run(batch, params, use_tqdm, lora_request, priorities, prompt_adapter_request)

    def chat(
        self,
        messages: Messages | Sequence[Messages],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool | Callable[..., Any] = True,
        lora_request: LoRARequest | None = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: list[Any] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        prompt_adapter_request: PromptAdapterRequest | None = None,
        priority: int | Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation or several, rendered by the given chat template or the model's own.

        Parts with a picture, where the model takes some: {"type": "image_url", "image_url": {"url": "data:..."}}, or
        {"type": "image", "image": bytes} with a file's bytes.

        priority: as for generate.
        """
        self.get_tokenizer()  # raises an error without one
        prompts = chat_prompts(
            self.llm_engine.get_input_preprocessor(),
            messages,
            template=chat_template,
            tools=tools,
            open_answer=add_generation_prompt,
            continue_last=continue_final_message,
            variables=chat_template_kwargs,
        )
        return self.generate(
            prompts, sampling_params, use_tqdm, lora_request, priority, prompt_adapter_request
        )

    def beam_search(
        self,
        prompts: Prompts,
        params: BeamSearchParams,
        lora_request: LoRARequest | None = None,
        use_tqdm: bool | Callable[..., Any] = False,
        concurrency_limit: int | None = None,
    ) -> list[BeamSearchOutput]:
        """Return the `beam_width` best continuations of each prompt.

        concurrency_limit: prompts that are searched together; None: all.
        """
        refuse(lora_request=lora_request)
        batch = as_list(prompts)
        limit = max(1, len(batch))
        if concurrency_limit is not None:
            limit = valid.integer("concurrency_limit", concurrency_limit, 1)
        outputs: list[BeamSearchOutput] = []
        with progress_bar(use_tqdm, len(batch)) as bar:
            for start in range(0, len(batch), limit):
                found = beam_search(self.llm_engine, batch[start : start + limit], params)
                outputs += found
                bar.update(len(found))
        return outputs

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
        """Return a pooling model's output for each prompt, by the task of its parameters or else `pooling_task`."""
        batch = as_list(prompts)
        cut = {} if truncate_prompt_tokens is None else {"truncate_prompt_tokens": truncate_prompt_tokens}
        given = PoolingParams() if pooling_params is None else pooling_params
        params = [
            msgspec.structs.replace(one, task=one.task or pooling_task, **cut)
            for one in one_each("pooling_params", given, len(batch))
        ]
        return self._run(batch, params, use_tqdm, lora_request)

    def embed(self, prompts: Prompts, **options: Any) -> list[EmbeddingRequestOutput]:
        """Return each prompt's embedding; `options` are those of `encode`."""
        embeddings: list[Any] = self.encode(prompts, **options, pooling_task="embed")
        return embeddings

    def classify(self, prompts: Prompts, **options: Any) -> list[ClassificationRequestOutput]:
        """Return each prompt's score for each label; `options` are those of `encode`."""
        scores: list[Any] = self.encode(prompts, **options, pooling_task="classify")
        return scores

    def score(
        self,
        data_1: str | list[str],
        data_2: str | list[str],
        /,
        *,
        truncate_prompt_tokens: int | None = None,
        instruction: str | None = None,
        **options: Any,
    ) -> list[ScoringRequestOutput]:
        """Return how well each text of `data_1`, or its only one, matches that of `data_2`, by a cross-encoder.

        instruction: what makes a match, for a language model whose template takes it; None: the model's default.
        `options` as `encode` takes them.
        """
        seconds = [data_2] if isinstance(data_2, str) else data_2
        firsts = one_each("data_1", data_1[0] if len(data_1) == 1 else data_1, len(seconds))
        context = self.model_config.max_model_len
        longest = context if truncate_prompt_tokens == -1 else truncate_prompt_tokens
        texts = list(zip(firsts, seconds, strict=True))
        pooling, tokenizer = self.model_config.pooling, self.get_tokenizer()
        if pooling is None:
            raise InvalidRequestError("the model generates; it has no scores", "data_1")
        check_template(tokenizer, pooling)
        pairs = pair_prompts(tokenizer, pooling, texts, Truncation(longest), instruction)
        scores: list[Any] = self.encode(pairs, **options, pooling_task="score")
        return scores

    def _run(
        self,
        prompts: Sequence[PromptType],
        params: Sequence[SamplingParams | PoolingParams],
        use_tqdm: bool | Callable[..., Any],
        lora_request: LoRARequest | None,
        priority: int | Sequence[int] = 0,
        prompt_adapter_request: PromptAdapterRequest | None = None,
    ) -> list[Any]:
        engine, outputs = self.llm_engine, {}
        request_ids = list(islice(self._request_ids, len(prompts)))
        priorities = one_each("priority", priority, len(prompts))
        try:
            for request_id, prompt, one, own in zip(request_ids, prompts, params, priorities, strict=True):
                engine.add_request(
                    request_id, prompt, one, lora_request=lora_request,
                    prompt_adapter_request=prompt_adapter_request, priority=own,
                )  # fmt: skip
            with progress_bar(use_tqdm, len(prompts)) as bar:
                while engine.has_unfinished_requests():
                    for output in engine.step():
                        if output.finished:
                            outputs[output.request_id] = output
                            bar.update()
        except BaseException:
            engine.abort_request(request_ids)
            raise
        return [outputs[request_id] for request_id in request_ids]


def progress_bar(use_tqdm: bool | Callable[..., Any], total: int) -> Any:
    """Return a progress bar over prompts, made by tqdm or by the caller's function."""
    make = use_tqdm if callable(use_tqdm) else tqdm
    return make(total=total, desc="Processed prompts", disable=not use_tqdm)


def as_list(prompts: Prompts) -> Sequence[Any]:
    """Return the prompts of a batch; a single prompt is a batch of one."""
    if isinstance(prompts, str | Mapping):
        return [prompts]
    if len(prompts) > 0 and all(isinstance(item, int) for item in prompts):
        return [prompts]
    return prompts


def one_each(name: str, values: T | Sequence[T], count: int) -> Sequence[T]:
    """Return a value for each of `count` prompts. Raises InvalidRequestError for a sequence of another length."""
    if isinstance(values, str) or not isinstance(values, Sequence):
        return [values] * count
    if len(values) != count:
        raise InvalidRequestError(f"{name} has {len(values)} entries for {count} prompts", name)
    return values
