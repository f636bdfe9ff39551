"""Calls that the first rank's process sends to those of the other ranks, as msgpack."""

from inspect import isfunction
from typing import Any, get_type_hints

import msgspec
import numpy as np
from torch import Tensor

from engine_server.core.runner import CollectiveCalls
from engine_server.requests.messages import RawTensor


class CallEncoder:
    """An encoder of method calls."""

    def __init__(self) -> None:
        self._encoder = msgspec.msgpack.Encoder(enc_hook=encode_array)

    def encode(self, method: str, args: tuple[Any, ...]) -> bytes:
        return self._encoder.encode((method, args))


class CallDecoder:
    """A decoder of calls of the methods of CollectiveCalls, whose hints are the types of their arguments."""

    def __init__(self) -> None:
        self._call = msgspec.msgpack.Decoder(tuple[str, msgspec.Raw])
        methods = {
            name: one for name, one in vars(CollectiveCalls).items() if isfunction(one) and name[0] != "_"
        }
        self._arguments = {
            name: msgspec.msgpack.Decoder(argument_types(method), dec_hook=decode_array)
            for name, method in methods.items()
        }

    def decode(self, data: bytes) -> tuple[str, tuple[Any, ...]]:
        """Return a method's name and its arguments."""
        method, arguments = self._call.decode(data)
        return method, self._arguments[method].decode(arguments)


def argument_types(method: Any) -> Any:
    """Return the type of a tuple of a method's arguments, which all have hints."""
    hints = {name: hint for name, hint in get_type_hints(method).items() if name != "return"}
    return tuple.__class_getitem__(tuple(hints.values()))


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
