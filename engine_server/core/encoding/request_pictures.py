"""The pictures of one request."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from engine_server.core.span import Span
from engine_server.requests import messages

# What a model's encoder takes for a picture, by name.
EncoderInputs = dict[str, Tensor]


def read_inputs(raw: messages.EncoderInputs) -> EncoderInputs:
    return {name: tensor.tensor() for name, tensor in raw.items()}


@dataclass(slots=True, eq=False)
class RequestPictures:
    """The places of pictures in a request's prompt, and what is known of them."""

    request_id: str
    # In order.
    spans: Sequence[Span]
    # Of the pictures that are about to be encoded, by digest, as far as they have arrived.
    inputs: dict[str, EncoderInputs] = field(default_factory=dict)
    # The pictures whose inputs the front end was asked for.
    asked: set[str] = field(default_factory=set)
    # The pictures whose rows stay until the request lets go of them.
    held: set[str] = field(default_factory=set)
    # It can't run before a message arrives, or another request lets go of rows.
    waiting: bool = False
    # Why a picture's inputs can't be had.
    error: str | None = None
    # Why the model can't take a picture.
    misfit: str | None = None

    @property
    def failed(self) -> bool:
        return self.error is not None or self.misfit is not None

    def needed_from(self, start: int) -> dict[str, int]:
        """Return the pictures of which tokens from `start` on need rows, each with the number of all its rows."""
        needed = {span.digest: 0 for span in self.spans if span.end > start}
        for span in self.spans:
            if span.digest in needed:
                needed[span.digest] = max(needed[span.digest], span.first + span.length)
        return needed
