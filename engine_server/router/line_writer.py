"""Log output that never blocks the event loop, even if nobody reads it."""

import os
import threading
from collections import deque

# Text that waits to be written. Beyond it lines are dropped.
MAX_WAITING_CHARACTERS = 4 * 1024 * 1024


class LineWriter:
    """Writes text to a file descriptor from a thread of its own; a stream for `logging`, and for the access log.

    A pipe that is full, since its reader is slow or stopped, blocks only this thread.
    """

    def __init__(self, descriptor: int, max_waiting: int = MAX_WAITING_CHARACTERS) -> None:
        self._descriptor = descriptor
        self._max_waiting = max_waiting
        self._texts: deque[str] = deque()
        self._waiting = 0
        # Lines that were dropped because too much text was waiting.
        self.dropped = 0
        self._changed = threading.Condition()
        self._closing = False
        # A thread that hangs in a write must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name="log output", daemon=True)
        self._thread.start()

    def write(self, text: str) -> None:
        """Write whole lines soon, or drop them."""
        with self._changed:
            if self._waiting + len(text) > self._max_waiting:
                self.dropped += text.count("\n")
                return
            self._texts.append(text)
            self._waiting += len(text)
            self._changed.notify()

    def flush(self) -> None:
        """Return at once: `logging` calls it after each line."""

    def close(self, timeout: float) -> None:
        """Wait up to `timeout` seconds until everything is written."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(timeout)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._texts:
                    if self._closing:
                        return
                    self._changed.wait()
                texts = [*self._texts]
                self._texts.clear()
            text = "".join(texts)
            self._write(text.encode(errors="backslashreplace"))
            with self._changed:
                self._waiting -= len(text)

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self._descriptor, view) :]
            except OSError:  # the reader is gone, and with it the only place to report that
                return
