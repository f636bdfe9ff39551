"""The synchronous engine: add requests, then step until none is left. The core runs in the caller's process."""

import logging
from collections.abc import Iterable, Mapping
from typing import Self

from transformers import PreTrainedTokenizerBase

from engine_server.engine.arg_utils import EngineArgs
from engine_server.engine.compat import one_prompt, refuse, request_key, request_keys
from engine_server.engine.config import EngineConfig, ModelConfig, SchedulerConfig, with_blocks
from engine_server.engine.core.engine_core import EngineCore
from engine_server.engine.front_end import FrontEnd, StatLoggers
from engine_server.engine.inputs import PromptType
from engine_server.engine.messages import AbortRequests
from engine_server.engine.outputs import RequestOutput
from engine_server.engine.sampling_params import SamplingParams
from engine_server.engine.tokenizer import load_tokenizer

logger = logging.getLogger(__name__)


class LLMEngine:
    """An engine that its caller drives. Raises ValueError for a model or setting that can't be used."""

    def __init__(
        self, config: EngineConfig, log_stats: bool = True, stat_loggers: StatLoggers | None = None
    ) -> None:
        tokenizer = load_tokenizer(config.model)
        self._core = EngineCore(config, lambda name, seconds: logger.info("%s: %.1f s", name, seconds))
        self.config = with_blocks(config, self._core.table.pool.num_blocks)
        self._front_end = FrontEnd(self.config, tokenizer, log_stats, stat_loggers)

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs, stat_loggers: StatLoggers | None = None) -> Self:
        return cls(engine_args.create_engine_config(), not engine_args.disable_log_stats, stat_loggers)

    def add_request(
        self,
        request_id: str | int,
        prompt: PromptType | None = None,
        params: SamplingParams | None = None,
        arrival_time: float | None = None,
        lora_request: object = None,
        trace_headers: Mapping[str, str] | None = None,
        prompt_adapter_request: object = None,
        priority: int = 0,
        *,
        inputs: PromptType | None = None,
    ) -> None:
        """Queue a request for the next steps. Raises InvalidRequestError. `arrival_time` is monotonic."""
        refuse(
            lora_request=lora_request,
            trace_headers=trace_headers,
            prompt_adapter_request=prompt_adapter_request,
            priority=priority,
        )
        key = request_key(request_id)
        self._core.handle(
            self._front_end.admit(key, one_prompt(prompt, inputs), params or SamplingParams(), arrival_time)
        )

    def abort_request(self, request_id: str | int | Iterable[str]) -> None:
        """End requests at once; `step` says nothing of them any more. Unknown ids are no error."""
        request_ids = request_keys(request_id)
        self._front_end.abort(request_ids)
        self._core.handle(AbortRequests(request_ids))

    def step(self) -> list[RequestOutput]:
        """One iteration over whatever runs; [] at once where nothing does."""
        if not self._core.has_work:
            return []
        outputs, stopped = self._front_end.digest(self._core.outputs())
        if stopped:
            self._core.handle(AbortRequests(stopped))
        return outputs

    def has_unfinished_requests(self) -> bool:
        return len(self._front_end.requests) > 0

    def get_num_unfinished_requests(self) -> int:
        return len(self._front_end.requests)

    def get_tokenizer(self) -> PreTrainedTokenizerBase:
        """Raises ValueError where the engine was made without one."""
        return self._front_end.require_tokenizer()

    def get_model_config(self) -> ModelConfig:
        return self.config.model

    def get_scheduler_config(self) -> SchedulerConfig:
        return self.config.scheduler

    def do_log_stats(self) -> None:
        self._front_end.log_stats()
