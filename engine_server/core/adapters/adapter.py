"""One adapter that requests have named."""

from concurrent.futures import Future
from dataclasses import dataclass

from engine_server.modeling.adapters.peft_folder import LowRankAdapter
from engine_server.requests.adapters import LoRARequest


@dataclass(eq=False, slots=True)
class Adapter:
    """An adapter, and the requests that need it."""

    lora: LoRARequest
    # Its content, or the reason why it can't be used. None: it isn't in memory.
    reading: Future[LowRankAdapter] | None = None
    # The digest of its content, once it was in memory.
    digest: str | None = None
    slot: int | None = None
    # Requests that have not ended; those of them that have run, and must go on with the same content; and that run.
    num_requests: int = 0
    num_started: int = 0
    num_running: int = 0
    # It keeps its slot.
    pinned: bool = False
    # No new request gets this object: it goes when its last request ends.
    removed: bool = False
    # Rises with each use.
    last_use: int = 0

    @property
    def settled(self) -> bool:
        """True once its content is in memory, or can't be."""
        return self.reading is not None and self.reading.done()

    @property
    def reading_now(self) -> bool:
        return self.reading is not None and not self.reading.done()

    @property
    def error(self) -> str | None:
        """The reason why it can't be used."""
        if self.reading is None or not self.reading.done() or self.reading.exception() is None:
            return None
        return f"the adapter {self.lora.lora_name} can't be loaded: {self.reading.exception()}"

    @property
    def content(self) -> LowRankAdapter | None:
        """Its content, if it is in memory."""
        if self.reading is None or not self.reading.done() or self.reading.exception() is not None:
            return None
        return self.reading.result()
