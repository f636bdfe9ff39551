"""Times of the preparation of prompts, and the part of their texts that was known."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from time import perf_counter

from engine_server.telemetry.stats import PromptStats


class PromptTimes:
    """Measurements since the last call of `take`. Any thread may add some."""

    def __init__(self) -> None:
        self._stats = PromptStats()
        self._lock = Lock()

    def take(self) -> PromptStats:
        """Return the measurements, and begin anew."""
        with self._lock:
            taken, self._stats = self._stats, PromptStats()
        return taken

    @contextmanager
    def rendering(self) -> Iterator[None]:
        """Measure the rendering of a chat template in the context."""
        begun = perf_counter()
        yield
        with self._lock:
            self._stats.render_seconds.append(perf_counter() - begun)

    def add_tokenized(self, seconds: float, num_characters: int, num_found: int) -> None:
        """Add the tokenization of a text. num_found: number of its characters whose tokens were known."""
        with self._lock:
            self._stats.tokenize_seconds.append(seconds)
            self._stats.num_characters += num_characters
            self._stats.num_characters_found += num_found

    def add_wait(self, seconds: float) -> None:
        """Add the time in which prompts waited for a thread to tokenize them."""
        with self._lock:
            self._stats.wait_seconds.append(seconds)
