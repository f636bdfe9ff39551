"""Control operations of the core: pause, sleep, profiling, calls on every rank."""

import logging
from collections.abc import Collection
from concurrent import futures
from typing import Any, NamedTuple

import msgspec
import torch

from engine_server.config import EngineConfig
from engine_server.core.adapters.adapter import Adapter
from engine_server.core.adapters.adapter_pool import AdapterPool
from engine_server.core.adapters.adapter_pools import AdapterPools, AnyPool
from engine_server.core.executor import Executor
from engine_server.core.runner import CollectiveCalls
from engine_server.core.scheduling.scheduler import Scheduler
from engine_server.core.span import Span
from engine_server.modeling.adapters.peft_folder import AdapterError, LowRankAdapter
from engine_server.requests.adapters import LoRARequest, PromptAdapterRequest
from engine_server.requests.messages import Call, CallResult

# The parts that sleep; each can be woken separately.
TAGS = frozenset(("weights", "kv_cache"))

logger = logging.getLogger(__name__)


class ReadingAdapter(NamedTuple):
    """An adapter that is being read, for the operation `method`."""

    method: str
    pool: AnyPool
    adapter: Adapter[Any, Any]


class ControlOperations:
    """The operations that can be called by name. While `halted`, no step runs and requests wait."""

    def __init__(
        self,
        config: EngineConfig,
        executor: Executor,
        scheduler: Scheduler,
        adapters: AdapterPools,
    ) -> None:
        self._trace_folder = config.observability_config.torch_profiler_dir
        self._executor = executor
        self._scheduler = scheduler
        self._adapters = adapters
        # Calls whose result is computed in another thread.
        self._unfinished: dict[int, ReadingAdapter] = {}
        self._profile: torch.profiler.profile | None = None
        self._asleep: frozenset[str] = frozenset()
        self._paused = False
        self.sleep_level = 0
        self._table = {
            method.__name__: method
            for method in (
                self.pause, self.resume, self.sleep, self.wake_up, self.is_sleeping,
                scheduler.reset_prefix_cache, self.start_profile, self.stop_profile, self.collective_rpc,
                self.add_lora, self.remove_lora, self.pin_lora, self.list_loras,
                self.add_prompt_adapter, self.remove_prompt_adapter, self.list_prompt_adapters,
            )
        }  # fmt: skip

    @property
    def halted(self) -> bool:
        return self._paused or self.is_sleeping()

    def run(self, call: Call) -> CallResult | None:
        """Run an operation, and return its result or its error; None if `finished` will return it.

        Raises nothing, so that the core keeps running.
        """
        try:
            value = self._table[call.method](*call.args)
        except Exception as error:
            return failed(call.call_id, call.method, error)
        if isinstance(value, ReadingAdapter):
            self._unfinished[call.call_id] = value
            return None
        return CallResult(call.call_id, value)

    @property
    def waiting(self) -> bool:
        """True while a call has no result yet."""
        return bool(self._unfinished)

    def wait(self) -> None:
        """Wait until another thread has finished a call."""
        readings = [one.adapter.reading for one in self._unfinished.values()]
        futures.wait(filter(None, readings), return_when=futures.FIRST_COMPLETED)

    def finished(self) -> list[CallResult]:
        """Return the results of calls that other threads have finished."""
        done = [(call_id, one) for call_id, one in self._unfinished.items() if one.adapter.settled]
        return [self._loaded(call_id, one) for call_id, one in done]

    def _loaded(self, call_id: int, one: ReadingAdapter) -> CallResult:
        del self._unfinished[call_id]
        error = one.adapter.error
        one.pool.keep(one.adapter)
        if error is None:
            return CallResult(call_id, one.adapter.digest)
        return failed(call_id, one.method, AdapterError(error))

    def add_lora(self, lora: dict[str, Any]) -> ReadingAdapter:
        """Read an adapter into memory, in another thread. The call's result is the digest of its content."""
        adapter = self._loras.add(msgspec.convert(lora, LoRARequest))
        return ReadingAdapter("add_lora", self._loras, adapter)

    def remove_lora(self, lora_int_id: int) -> bool:
        """Remove an adapter, and return False if it isn't in memory. Requests that have it go on."""
        return self._loras.remove(lora_int_id)

    def pin_lora(self, lora_int_id: int) -> bool:
        """Keep an adapter in memory and, once it has run, in its slot."""
        self._loras.pin(lora_int_id)
        return True

    def list_loras(self) -> list[int]:
        """Return the ids of the adapters in memory."""
        return self._loras.ids

    def add_prompt_adapter(self, named: dict[str, Any]) -> ReadingAdapter:
        """Read an adapter into memory, in another thread. The call's result is the digest of its content."""
        adapter = self._prompt_adapters.add(msgspec.convert(named, PromptAdapterRequest))
        return ReadingAdapter("add_prompt_adapter", self._prompt_adapters, adapter)

    def remove_prompt_adapter(self, prompt_adapter_id: int) -> bool:
        """Remove an adapter, and return False if it isn't in memory. Requests that have it go on."""
        return self._prompt_adapters.remove(prompt_adapter_id)

    def list_prompt_adapters(self) -> list[int]:
        """Return the ids of the adapters in memory."""
        return self._prompt_adapters.ids

    @property
    def _loras(self) -> AdapterPool[LoRARequest, LowRankAdapter]:
        if self._adapters.lora is None:
            raise ValueError("the engine was started without enable_lora")
        return self._adapters.lora

    @property
    def _prompt_adapters(self) -> AdapterPool[PromptAdapterRequest, Span]:
        if self._adapters.prompt is None:
            raise ValueError("the engine was started without enable_prompt_adapter")
        return self._adapters.prompt

    def pause(self) -> None:
        self._paused = True

    def resume(self) -> None:
        self._paused = False

    def sleep(self, level: int) -> None:
        """Free the KV cache and the weights: at level 1 the host keeps a copy, at level 2 none is kept.

        Running requests are preempted, and computed again after waking.
        """
        if level not in (1, 2):
            raise ValueError(f"level is {level!r}; allowed are 1 and 2")
        if self._asleep == TAGS:
            return
        if "weights" in self._asleep:  # and the cache was woken alone
            level = max(level, self.sleep_level)
        self._scheduler.preempt_all()
        self._scheduler.reset_prefix_cache()
        self._executor.ranks.run(CollectiveCalls.sleep, level)
        if self._adapters.lora is not None and level == 2:
            self._adapters.lora.vacate_all()
        self._asleep, self.sleep_level = TAGS, level

    def wake_up(self, tags: Collection[str] | None) -> None:
        """Wake the parts with these tags, by default all. Steps run once all are awake."""
        tags = TAGS if tags is None else frozenset(tags)
        if tags - TAGS:
            raise ValueError(f"there is no tag {', '.join(tags - TAGS)}; tags are {', '.join(sorted(TAGS))}")
        for tag in tags & self._asleep:
            self._executor.ranks.run(CollectiveCalls.wake, tag, self.sleep_level)
            self._asleep -= {tag}
        if self.sleep_level and not self._asleep:
            self._executor.ranks.run(CollectiveCalls.capture_graphs)
            self.sleep_level = 0

    def is_sleeping(self) -> bool:
        return bool(self._asleep)

    def collective_rpc(self, method: str, args: list[Any], kwargs: dict[str, Any]) -> list[Any]:
        """Call a method of every rank's model runner by its name; return the results, by rank."""
        return self._executor.collective_rpc(method, args, kwargs)

    def start_profile(self) -> None:
        """Trace the CPU, and the GPU where there is one, until `stop_profile`."""
        if self._trace_folder is None:
            raise ValueError("the engine was started without torch_profiler_dir, the folder for traces")
        if self._profile is not None:
            raise ValueError("a profile is already being recorded")
        written = torch.profiler.tensorboard_trace_handler(self._trace_folder, use_gzip=True)
        self._profile = torch.profiler.profile(on_trace_ready=written)
        self._profile.start()

    def stop_profile(self) -> None:
        """Write the trace, in Chrome's format."""
        if self._profile is None:
            raise ValueError("no profile is being recorded")
        profile, self._profile = self._profile, None
        profile.stop()


def failed(call_id: int, method: str, error: Exception) -> CallResult:
    """Return the result of a call that raised an error, and log it."""
    logger.warning("%s failed: %s", method, str(error))  # a record may outlive the error's frames
    return CallResult(call_id, error=f"{method}: {error}", refused=isinstance(error, ValueError))
