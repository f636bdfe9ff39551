"""The rows of pictures on one rank."""

from collections.abc import Callable

import torch
from torch import Tensor

from engine_server.core.encoding.request_pictures import EncoderInputs
from engine_server.core.span import Span


class RankRows:
    """The rows that the encoder made of pictures, by digest.

    encode: returns the rows [n, hidden] of one picture. Raises ValueError for one that it can't take.
    """

    def __init__(self, encode: Callable[[EncoderInputs], Tensor]) -> None:
        self._encode = encode
        self._rows: dict[str, Tensor] = {}

    def add(self, digest: str, inputs: EncoderInputs, count: int) -> str | None:
        """Encode a picture and keep its rows; return the reason if it doesn't become `count` rows."""
        try:
            rows = self._encode(inputs)
        except (ValueError, torch.OutOfMemoryError) as error:
            return f"the model can't take the picture: {error}"
        if len(rows) != count:
            return f"the model makes {len(rows)} rows of the picture, which has {count} placeholders"
        self._rows[digest] = rows
        return None

    def drop(self, digests: list[str]) -> None:
        for digest in digests:
            self._rows.pop(digest, None)

    def clear(self) -> None:
        self._rows.clear()

    def of(self, span: Span) -> Tensor:
        """Return the rows [length, hidden] of a picture's span."""
        return self._rows[span.digest][span.first : span.first + span.length]
