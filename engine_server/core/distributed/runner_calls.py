"""Calls that the first rank's process sends to those of the other ranks, as msgpack."""

from typing import Any

import msgspec
import numpy as np
from torch import Tensor

from engine_server.core.model_inputs import ModelInputs
from engine_server.modeling.adapters.peft_folder import LowRankAdapter
from engine_server.requests.messages import RawTensor

# The methods of a ModelRunner that all ranks call, with the types of their arguments.
ARGUMENT_TYPES: dict[str, Any] = {
    "capture_graphs": tuple[()],
    "draft_logits": tuple[ModelInputs],
    "forward": tuple[ModelInputs],
    "run_decodes": tuple[int, bool],
    "put_adapter": tuple[int, LowRankAdapter],
    "join_head": tuple[()],
    "collective_rpc": tuple[str, list[Any], dict[str, Any]],
    "erase": tuple[list[list[int]]],
    "sleep": tuple[int],
    "wake": tuple[str, int],
}


class CallEncoder:
    """An encoder of method calls."""

    def __init__(self) -> None:
        self._encoder = msgspec.msgpack.Encoder(enc_hook=encode_array)

    def encode(self, method: str, args: tuple[Any, ...]) -> bytes:
        return self._encoder.encode((method, args))


class CallDecoder:
    """A decoder of calls of the methods in `ARGUMENT_TYPES`."""

    def __init__(self) -> None:
        self._call = msgspec.msgpack.Decoder(tuple[str, msgspec.Raw])
        self._arguments = {
            method: msgspec.msgpack.Decoder(types, dec_hook=decode_array)
            for method, types in ARGUMENT_TYPES.items()
        }

    def decode(self, data: bytes) -> tuple[str, tuple[Any, ...]]:
        """Return a method's name and its arguments."""
        method, arguments = self._call.decode(data)
        return method, self._arguments[method].decode(arguments)


def encode_array(value: Any) -> Any:
    """Convert an array or a tensor to what msgpack can encode."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    return RawTensor.of(value)


def decode_array(kind: Any, data: list[Any]) -> Any:
    """Convert the result of `encode_array` back, to an array or tensor that owns its memory and is writable."""
    if kind is Tensor:
        return RawTensor(*data).tensor()
    dtype, shape, content = data
    return np.frombuffer(bytearray(content), dtype).reshape(shape)
