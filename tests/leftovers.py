"""What a core keeps of a collected step and of an ended request: the objects that are alive, and who holds them.

A step's objects are its batch, inputs, states and results, those of its drafts included; a request's are itself and
what belongs to it alone. Weak references tell which are alive. A walk over the core's attributes finds their owners.
"""

import functools
import gc
import types
import weakref
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from engine_server.core.engine_core import EngineCore
from engine_server.core.executor import Executor
from engine_server.core.forward_output import ForwardOutput
from engine_server.core.model_inputs import EMPTY, ModelInputs
from engine_server.core.model_runner import ModelRunner
from engine_server.core.scheduling.batch import Batch, Scheduled
from engine_server.core.scheduling.request import GenerationRequest, PoolingRequest, Request
from engine_server.core.scheduling.scheduler import Scheduler
from engine_server.core.scheduling.step_result import StepResult
from engine_server.modeling.attention.interface import AttentionBackend
from engine_server.modeling.graphs.staging import NO_CHANGES
from engine_server.requests.messages import AddRequest

# Owners of what no attribute of the core reaches.
CYCLE, ELSEWHERE = "a reference cycle", "outside the core"


class Part(Scheduled, frozen=True, weakref=True, gc=True):
    """A part of a step of which weak references can be made."""


class Result(StepResult, frozen=True, weakref=True, gc=True):
    """A result of which weak references can be made."""


class Generation(GenerationRequest):
    """A request for tokens of which weak references can be made."""

    __slots__ = ("__weakref__",)


class Pooling(PoolingRequest):
    """A request for a vector of which weak references can be made."""

    __slots__ = ("__weakref__",)


@dataclass(eq=False)
class Traces:
    """References to objects that do not keep them alive, by what they are."""

    references: dict[str, list[weakref.ref | StorageWeakRef]] = field(default_factory=dict)
    # True once the step's results were collected, or the step has failed.
    done: bool = False

    def add(self, kind: str, value: object) -> None:
        """Add what can be referred to weakly in `value`."""
        own = self.references.setdefault(kind, [])
        for one in contents(value):
            if not any(one is constant for constant in CONSTANTS):
                own.append(StorageWeakRef(one) if isinstance(one, torch.UntypedStorage) else weakref.ref(one))

    def add_request(self, request: Request) -> None:
        """Add a request and what belongs to it alone."""
        self.references["request"] = [weakref.ref(request)]
        for name, value in attributes(request):
            if name not in {"adapters", "params"} and type(value).__module__.startswith("engine_server"):
                self.add(name, value)

    def alive(self) -> Iterator[tuple[int, str]]:
        """Yield the identity and the kind of each object that is alive."""
        for kind, references in self.references.items():
            for one in references:
                if isinstance(one, StorageWeakRef):
                    if not one.expired():
                        yield one.cdata, kind
                elif (target := one()) is not None:
                    yield id(target), kind


def contents(value: object) -> Iterator[Any]:
    """Yield the tensors, arrays and other objects that a value consists of, if they can be referred to weakly.

    Not the requests, which outlive it.
    """
    if isinstance(value, torch.Tensor):
        yield value.untyped_storage()  # whatever view of it is held
    elif isinstance(value, np.ndarray):
        while isinstance(value.base, np.ndarray):
            value = value.base
        yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from contents(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from contents(one)
    elif not isinstance(value, Request):
        if type(value).__weakrefoffset__:
            yield value
        if isinstance(value, Result):
            yield from contents(msgspec.structs.astuple(value))


def pending_parts(pending: Any) -> Iterator[Any]:
    """Yield pending results, the ones that they wrap, and their tensors."""
    yield pending
    for value in vars(pending).values():
        if hasattr(value, "collect"):
            yield from pending_parts(value)
        elif isinstance(value, torch.Tensor | list):
            yield value


# Values that steps share.
CONSTANTS = list(contents([EMPTY, NO_CHANGES]))


class Collected:
    """Pending results that note their collection in a step's traces."""

    def __init__(self, pending: Any, traces: Traces) -> None:
        self._pending, self._traces = pending, traces

    def collect(self) -> list[StepResult]:
        self._traces.done = True
        results = [Result(*msgspec.structs.astuple(one)) for one in self._pending.collect()]
        self._traces.add("results", results)
        return results  # type: ignore[return-value]


class Recorder:
    """Records what steps and requests consist of, while it is in place, and what of it is alive later."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._steps = [Traces()]
        self._requests: dict[str, Traces] = {}
        # The next forward runs out of memory.
        self.fail_next = False
        self._wrap(patch, Scheduler, "schedule", self._schedule)
        self._wrap(patch, Executor, "forward", self._forward)
        self._wrap(patch, Executor, "head", self._head)
        self._wrap(patch, Executor, "draft_logits", self._draft)
        self._wrap(patch, ModelRunner, "forward", self._compute)
        self._wrap(patch, ModelRunner, "draft_logits", self._draft_logits)
        original = Request.from_message
        patch.setattr(Request, "from_message", lambda message: self._requests_of(original, message))

    def add(self, request: Request) -> None:
        """Record a request and what belongs to it alone, before it ends."""
        self._requests[request.request_id] = Traces()
        self._requests[request.request_id].add_request(request)

    def left_of_request(self, request_id: str, core: EngineCore) -> set[tuple[str, str]]:
        """Return the kinds and owners of what is alive of a request that was added."""
        return owners([self._requests.pop(request_id)], core)

    def left_of_steps(self, done: Collection[Traces], core: EngineCore) -> set[tuple[str, str]]:
        """Return the kinds and owners of what is alive of steps, and forget them."""
        self._steps = [one for one in self._steps if one not in done]
        return owners(done, core)

    def done(self) -> list[Traces]:
        """Return the steps that were collected or have failed."""
        return [one for one in self._steps if one.done]

    @staticmethod
    def _wrap(patch: pytest.MonkeyPatch, owner: type, name: str, wrapper: Callable[..., Any]) -> None:
        original = getattr(owner, name)
        patch.setattr(owner, name, lambda self, *args: wrapper(functools.partial(original, self), *args))

    def _requests_of(self, build: Callable[..., list[Request]], message: AddRequest) -> list[Request]:
        return [weakly_referable(one) for one in build(message)]

    def _schedule(self, schedule: Callable[[], Batch]) -> Batch:
        return [Part(*msgspec.structs.astuple(one)) for one in schedule()]

    def _forward(self, forward: Callable[..., Any], batch: Batch) -> Any:
        traces = self._steps[-1]
        traces.add("batch", batch)
        try:
            return forward(batch)
        except torch.OutOfMemoryError:
            traces.done = True
            self._steps.append(Traces())
            raise

    def _head(self, head: Callable[..., Any], states: Any, masks: Any) -> Any:
        traces = self._steps[-1]
        pending = head(states, masks)
        traces.add("masks", masks)
        traces.add("results", list(pending_parts(pending)))
        self._steps.append(Traces())
        return Collected(pending, traces)

    def _draft(self, draft: Callable[..., Any], batch: Batch, *rest: Any) -> Any:
        parts = [Part(*msgspec.structs.astuple(one)) for one in batch]
        self._steps[-1].add("batch", parts)
        return draft(parts, *rest)

    def _draft_logits(self, compute: Callable[..., Tensor], inputs: ModelInputs) -> Tensor:
        logits = compute(inputs)
        self._steps[-1].add("inputs", inputs)
        self._steps[-1].add("states", logits)
        return logits

    def _compute(self, compute: Callable[..., ForwardOutput], inputs: ModelInputs) -> ForwardOutput:
        # Embeddings are slices of what requests and adapters own.
        self._steps[-1].add("inputs", inputs._replace(embeds=[]))
        output = compute(inputs)
        # `sampled` is a part of staging's buffers.
        self._steps[-1].add("states", [output.rows, *output.prompt_rows, *output.slots])
        if self.fail_next:
            self.fail_next = False
            raise torch.OutOfMemoryError("out of memory")
        return output


def weakly_referable(request: Request) -> Request:
    """Return a copy of a new request, of which weak references can be made."""
    kind = Generation if isinstance(request, GenerationRequest) else Pooling
    copy = object.__new__(kind)
    for name, value in attributes(request):
        setattr(copy, name, value)
    return copy


def owners(traces: Collection[Traces], core: EngineCore) -> set[tuple[str, str]]:
    """Return the kinds of traced objects that are alive, each with the attributes that hold them."""
    alive = dict(pair for one in traces for pair in one.alive())
    if not alive:
        return set()
    found = {(identity, owner) for identity, owner in Walk(alive.keys()).found(core)}
    missing = alive.keys() - {identity for identity, _ in found}
    if missing:
        gc.collect()
        left = {identity for one in traces for identity, _ in one.alive()}
        found |= {(identity, ELSEWHERE if identity in left else CYCLE) for identity in missing}
    return {(alive[identity], owner) for identity, owner in found}


class Walk:
    """A walk over an object's attributes, and theirs, to all owners of the wanted objects.

    An owner is the last attribute of a class of ours on the way, without those of wanted objects themselves.
    """

    def __init__(self, wanted: Collection[int]) -> None:
        self._wanted = wanted
        self._seen: set[tuple[int, str]] = set()

    def found(self, root: object) -> Iterator[tuple[int, str]]:
        """Yield the identity of each wanted object, and its owner."""
        open_ends = [(root, "")]
        while open_ends:
            value, owner = open_ends.pop()
            own = is_owner(type(value))
            known = any(one in self._wanted for one in identities(value))
            # The way to another object doesn't matter, but that to a container does.
            key = (id(value), "" if own and not known else owner)
            if key in self._seen:
                continue
            self._seen.add(key)
            for one in identities(value):
                if one in self._wanted:
                    yield one, owner
            if own and not known:
                name = owner_name(value)
                open_ends += [(one, f"{name}.{attribute}") for attribute, one in attributes(value)]
            else:
                open_ends += [(one, owner) for one in parts(value)]


def identities(value: object) -> list[int]:
    """Return the numbers by which traces know a value."""
    if isinstance(value, torch.Tensor):
        return [value.untyped_storage()._cdata]
    if isinstance(value, np.ndarray):
        return [id(one) for one in contents(value)]
    return [id(value)]


@functools.cache
def is_owner(kind: type) -> bool:
    """Return True for a class of ours or a module, whose attributes are owners, and False for a plain value."""
    if issubclass(kind, tuple | msgspec.Struct | Collected):
        return False
    ours = any(one.__module__.startswith("engine_server") for one in kind.__mro__)
    return ours or issubclass(kind, torch.nn.Module)


def owner_name(value: object) -> str:
    """Return the name of an owner's class; of attention, of the interface, since the class depends on the CPU."""
    return "AttentionBackend" if isinstance(value, AttentionBackend) else type(value).__name__


def attributes(value: object) -> Iterator[tuple[str, Any]]:
    """Yield the names and values of an object's attributes."""
    yield from vars(value).items() if hasattr(value, "__dict__") else ()
    names: list[str] = []
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        names += [slots] if isinstance(slots, str) else slots
    for name in dict.fromkeys(names):
        if name not in {"__weakref__", "__dict__"} and hasattr(value, name):
            yield name, getattr(value, name)


def parts(value: object) -> Collection[Any]:
    """Return what a container or a function holds."""
    match value:
        case dict():
            return [*value.keys(), *value.values()]
        case list() | tuple() | set() | frozenset():
            return value
        case types.MethodType():
            return [value.__self__]
        case types.FunctionType():
            cells = value.__closure__ or ()
            return [cell.cell_contents for cell in cells if cell != types.CellType()]
        case functools.partial():
            return [value.func, *value.args, *value.keywords.values()]
        case msgspec.Struct():
            return msgspec.structs.astuple(value)
        case Collected():
            return [value._pending]
    if is_owner(type(value)):
        return [one for _, one in attributes(value)]
    # deque and other containers of Python's and of libraries
    return list(value) if type(value).__module__ in {"collections", "sortedcontainers.sortedlist"} else ()
