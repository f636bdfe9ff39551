"""The words by which an engine that does not fit into memory reports it: the operator finds them in its last output."""

import re
from typing import NamedTuple

_WORDS = re.compile(r"(\d+) MiB of (\w+)(?::\d+)? memory needed, (\d+) MiB available")


class MemoryShortage(NamedTuple):
    """The memory that an engine needs, and the memory that is available to it, in MiB."""

    needed: int
    available: int
    # A torch device, such as cuda.
    device: str

    def __str__(self) -> str:
        return f"{self.needed} MiB of {self.device} memory needed, {self.available} MiB available"

    @property
    def is_on_gpu(self) -> bool:
        return self.device != "cpu"


def find_shortage(text: str) -> MemoryShortage | None:
    """Return the shortage that `text` reports last, if any."""
    found = list(_WORDS.finditer(text))
    return MemoryShortage(int(found[-1][1]), int(found[-1][3]), found[-1][2]) if found else None
