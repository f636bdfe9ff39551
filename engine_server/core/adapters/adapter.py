"""One adapter that requests have named."""

from concurrent.futures import Future
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from engine_server.core.span import Span
from engine_server.modeling.adapters.peft_folder import LowRankAdapter
from engine_server.requests.adapters import LoRARequest, PromptAdapterRequest

R = TypeVar("R", LoRARequest, PromptAdapterRequest)
C = TypeVar("C", LowRankAdapter, Span)


@dataclass(eq=False, slots=True)
class Adapter(Generic[R, C]):
    """An adapter, and the requests that need it."""

    # As requests name it.
    named: R
    # Its content, or the reason why it can't be used. None: it isn't in memory.
    reading: Future[C] | None = None
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
        return f"the adapter {self.named.name} can't be loaded: {self.reading.exception()}"

    @property
    def content(self) -> C | None:
        """Its content, if it is in memory."""
        if self.reading is None or not self.reading.done() or self.reading.exception() is not None:
            return None
        return self.reading.result()


class RequestAdapters(NamedTuple):
    """The adapters of a request, of each kind one at most."""

    lora: Adapter[LoRARequest, LowRankAdapter] | None = None
    prompt: Adapter[PromptAdapterRequest, Span] | None = None

    @property
    def settled(self) -> bool:
        """True once the contents are in memory, or can't be."""
        return (self.lora is None or self.lora.settled) and (self.prompt is None or self.prompt.settled)

    @property
    def error(self) -> str | None:
        """The reason why one of them can't be used."""
        return (self.lora.error if self.lora else None) or (self.prompt.error if self.prompt else None)

    @property
    def slot(self) -> int:
        """The slot of a running request's LoRA adapter; -1 for none."""
        return -1 if self.lora is None or self.lora.slot is None else self.lora.slot


NO_ADAPTERS = RequestAdapters()
