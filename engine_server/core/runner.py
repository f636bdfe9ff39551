"""What the core needs of a runner: one rank's model, with its cache, its kernels and, on the first rank, its head."""

from collections.abc import Callable, Iterator
from typing import Any, Protocol

from torch import Tensor

from engine_server.config import EngineConfig
from engine_server.config.start_facts import StartFacts
from engine_server.core.cache.block_table import BlockTable
from engine_server.core.forward_output import ForwardOutput
from engine_server.core.model_inputs import ModelInputs
from engine_server.core.sampling.head import Head
from engine_server.core.scheduling.request import Request
from engine_server.modeling.adapters.peft_folder import LowRankAdapter
from engine_server.modeling.device.communicator import Communicator
from engine_server.modeling.device.progress import ProgressClock
from engine_server.modeling.device.timing import DeviceTimer
from engine_server.modeling.platform.interface import Platform
from engine_server.requests.adapters import LoRARequest

OnPhase = Callable[[str, float], None]


class CollectiveCalls(Protocol):
    """What all ranks must call together, in the same order, so that their collectives match.

    The types of the arguments are those by which they are sent to the other processes.
    """

    def forward(self, inputs: ModelInputs) -> ForwardOutput:
        """Launch the computation of a step's hidden states."""

    def join_head(self, number: int) -> None:
        """Compute this rank's share of the logits that the first rank's head takes after a forward."""

    def draft_logits(self, inputs: ModelInputs) -> Tensor:
        """Compute a step of the draft model or head; return logits [n, vocabulary]."""

    def run_decodes(self, count: int, draft: bool) -> None:
        """Compute a step of `count` decodes up to their likeliest tokens.

        It writes to the cache's first `count` blocks. draft: compute the step of the draft model or head.
        """

    def put_adapter(self, slot: int, adapter: LowRankAdapter) -> None:
        """Copy an adapter, which was checked, to a slot."""

    def encode_picture(self, digest: str, inputs: dict[str, Tensor], num_rows: int) -> str | None:
        """Encode a picture and keep its rows; return the reason if it can't be done.

        inputs: what the model's `get_image_features` takes, by name. num_rows: those that must come out.
        """

    def drop_pictures(self, digests: list[str]) -> None:
        """Forget the rows of pictures."""

    def erase(self, block_ids: list[list[int]]) -> None:
        """Zero the content of blocks of each pool."""

    def sleep(self, level: int) -> None:
        """Free the cache's memory and the weights': at level 1 the host keeps a copy, at level 2 none is kept."""

    def wake(self, tag: str, level: int) -> None:
        """Allocate the "kv_cache" again, zeroed, or load the "weights", which sleep at `level`."""

    def capture_graphs(self) -> None:
        """Capture steps if the device and the model allow it. Called again after a sleep."""

    def collective_rpc(
        self, method: str, args: list[Any], kwargs: dict[str, Any]
    ) -> list[tuple[Any, str | None]]:
        """Call a method of every rank's runner; return its result or error on each rank.

        msgpack must be able to encode the arguments and the result.
        """


class Runner(CollectiveCalls, Protocol):
    """One rank's runner, ready for steps once constructed."""

    platform: Platform
    timer: DeviceTimer
    table: BlockTable
    # None: of another rank than the first.
    head: Head | None
    # What is known once the model is loaded.
    facts: StartFacts
    # Steps are launched before the results of the ones before are collected.
    overlapped: bool

    def __init__(
        self,
        config: EngineConfig,
        ranks: Communicator,
        on_phase: OnPhase = ...,
        progress: ProgressClock | None = None,
    ) -> None:
        """on_phase: called with the name and the duration in seconds of each phase of the start.

        progress: ticks at every layer.
        """

    @property
    def caches(self) -> list[Tensor]:
        """The KV cache, and that of the draft model or head."""

    @property
    def attention(self) -> str:
        """The class of the attention backend."""

    @property
    def embedding_size(self) -> int:
        """The size of a token's embedding."""

    @property
    def stretched(self) -> bool:
        """True if a key depends on more than its position, since the model's rope changes with a sequence's length."""

    def rope_regime(self, request: Request) -> int:
        """Return the number that a request's keys depend on besides its tokens."""

    def read_adapter(self, lora: LoRARequest) -> LowRankAdapter:
        """Read an adapter. Raises AdapterError if it doesn't fit the model. It may run in any thread."""

    def logits(self, output: ForwardOutput) -> Iterator[Tensor]:
        """Yield the logits [n, vocabulary] of the latest forward's rows, then of each of its chunks of prompts.

        Each is computed when it is taken, and may be modified and freed. The other ranks take part by `join_head`.
        """

    def keep(self, output: ForwardOutput, tokens: Tensor) -> None:
        """Take the new tokens of a forward's rows, int64 [n] on the device, as inputs of the next overlapped step."""
