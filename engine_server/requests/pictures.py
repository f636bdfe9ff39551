"""Pictures in prompts: what a client sends, and the places in a prompt of what the model makes of them."""

from dataclasses import dataclass
from typing import NamedTuple

from engine_server.requests.messages import RawTensor


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture as it was sent."""

    # A file, whose format its first bytes tell. It is not read outside of a process made for it.
    data: bytes
    # Of `data`, in hexadecimal digits.
    sha256: str
    # It is made smaller, where the processor scales by pixels.
    low_detail: bool = False


class PlaceholderRun(NamedTuple):
    """Consecutive placeholders in a prompt, for consecutive rows of a picture."""

    # Index of the first one in the prompt's token ids.
    start: int
    length: int


@dataclass(frozen=True, slots=True)
class PromptPicture:
    """A picture of a prompt of tokens."""

    picture: Picture
    # Identifies what the model makes of it: sha256 of its bytes, the options, and the processor with its settings.
    digest: str
    # In the order of the picture's rows.
    runs: tuple[PlaceholderRun, ...]


@dataclass(frozen=True, slots=True)
class ProcessedPicture:
    """What the model takes for a picture."""

    # Its text in a prompt: a placeholder for each row, and wrappers.
    replacement: str
    # What the model's encoder takes, by name.
    inputs: dict[str, RawTensor]
    # To decode and process it.
    seconds: float = 0.0
