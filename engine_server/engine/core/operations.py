"""What the core can be asked for beside requests."""

import logging

import torch

from engine_server.engine.config import EngineConfig
from engine_server.engine.core.scheduler import Scheduler
from engine_server.engine.messages import Call, Returned

logger = logging.getLogger(__name__)


class Operations:
    """Runs calls by name. While `halted`, no step runs and requests wait."""

    def __init__(self, config: EngineConfig, scheduler: Scheduler) -> None:
        self._config = config
        self._profile: torch.profiler.profile | None = None
        self._table = {
            method.__name__: method
            for method in (
                self.pause,
                self.resume,
                scheduler.reset_prefix_cache,
                self.start_profile,
                self.stop_profile,
            )
        }
        self.halted = False
        self.sleep_level = 0

    def run(self, call: Call) -> Returned:
        """What the operation returns or raises. It never raises itself, so that the core lives on."""
        try:
            return Returned(call.call_id, self._table[call.method](*call.args))
        except Exception as error:
            logger.warning("%s failed: %s", call.method, error)
            return Returned(call.call_id, error=f"{call.method}: {error}")

    def pause(self) -> None:
        self.halted = True

    def resume(self) -> None:
        self.halted = False

    def start_profile(self) -> None:
        """Trace the CPU, and the GPU where there is one, until `stop_profile`."""
        folder = self._config.observability_config.torch_profiler_dir
        if folder is None:
            raise ValueError("the engine was started without torch_profiler_dir, the folder for traces")
        if self._profile is not None:
            raise ValueError("a profile is being taken already")
        written = torch.profiler.tensorboard_trace_handler(folder, use_gzip=True)
        self._profile = torch.profiler.profile(on_trace_ready=written)
        self._profile.start()

    def stop_profile(self) -> None:
        """Write the trace, in Chrome's format."""
        if self._profile is None:
            raise ValueError("no profile is being taken")
        profile, self._profile = self._profile, None
        profile.stop()
