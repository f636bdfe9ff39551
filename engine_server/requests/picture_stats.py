"""Statistics of pictures before their requests are queued."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class PictureStats:
    """Pictures of requests since the last report."""

    # The time to decode and process each one that was processed.
    seconds: list[float] = field(default_factory=list)
    # Those that could not be taken.
    refused: int = 0
    # Those of which the prompt's text was remembered.
    remembered: int = 0
