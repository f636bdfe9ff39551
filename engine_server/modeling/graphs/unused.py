"""Operations of a recording whose results nobody reads, such as a mask or a bias that our attention does without."""

from torch._ops import OpOverload

from engine_server.modeling.graphs.arena import storages_in
from engine_server.modeling.graphs.equivalents import PURE
from engine_server.modeling.graphs.recording import NativeCall, Place, Recording, TorchCall
from engine_server.modeling.native.library import POINTER, SIGNATURES


def without_unused(recording: Recording) -> Recording:
    """Return the recording without calls that only write buffers and results that no later call reads."""
    lasting = {number for number, one in enumerate(recording.storages) if one.kind in ("constant", "input")}
    read: set[int] = set()
    kept: list[NativeCall | TorchCall] = []
    for call in reversed(recording.calls):
        written = written_by(call)
        if written is None or written & (read | lasting):
            kept.append(call)
            read |= storages_in(call.arguments)
    return Recording(recording.storages, kept[::-1])


def written_by(call: NativeCall | TorchCall) -> set[int] | None:
    """Return the storages that a call writes, or None if it may write to its arguments."""
    if isinstance(call, TorchCall):
        pure = isinstance(call.function, OpOverload) and not call.function._schema.is_mutable
        return set(call.results) if pure and None not in call.results else None
    target = call.arguments[SIGNATURES[call.name].index(POINTER)] if call.name in PURE else None
    return {target.storage} if isinstance(target, Place) else None
