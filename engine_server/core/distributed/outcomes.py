"""The outcomes of a call on all ranks."""

from collections.abc import Callable
from typing import Any

import msgspec
import torch

from engine_server.modeling.device.communicator import Communicator


def gather_outcomes(
    ranks: Communicator, device: torch.device, call: Callable[[], Any]
) -> list[tuple[Any, str | None]]:
    """Make a call, which all ranks make; return the result or the error of each. msgpack must encode the result."""
    try:
        outcome = msgspec.msgpack.encode((call(), None))
    except Exception as error:
        outcome = msgspec.msgpack.encode((None, f"{type(error).__name__}: {error}"))
    decoder = msgspec.msgpack.Decoder(tuple[Any, str | None])
    return [decoder.decode(one) for one in gather_bytes(ranks, outcome, device)]


def gather_bytes(ranks: Communicator, own: bytes, device: torch.device) -> list[bytes]:
    """Return every rank's bytes."""
    if ranks.size == 1:
        return [own]
    lengths = ranks.gather(torch.tensor([len(own)], device=device)).tolist()
    padded = torch.zeros(max(lengths), dtype=torch.uint8)
    padded[: len(own)] = torch.frombuffer(bytearray(own), dtype=torch.uint8)
    gathered = ranks.gather(padded.to(device)).cpu().view(ranks.size, -1).numpy()
    return [part[:length].tobytes() for part, length in zip(gathered, lengths, strict=True)]
