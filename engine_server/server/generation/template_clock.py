"""The clock of chat templates, which stands at the time of the answer.

Templates write the day by `strftime_now`, which transformers gives them as a global function; no variable can take its
place, since transformers makes plain data of all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime

NAME = "strftime_now"
# Seconds since the epoch.
_time: ContextVar[int | None] = ContextVar("time", default=None)


@contextmanager
def stopped_clock(template: str, seconds: int | None) -> Iterator[None]:
    """Render a chat template at a time, in seconds since the epoch; None: at the current one."""
    if seconds is None or NAME not in template:
        yield
        return
    # Not before the server listens; the tokenizer has imported it by now.
    from transformers.utils.chat_template_utils import _compile_jinja_template

    # Compiled once for all that render it, perhaps in other threads.
    _compile_jinja_template(template).globals[NAME] = strftime_now
    token = _time.set(seconds)
    try:
        yield
    finally:
        _time.reset(token)


def strftime_now(format: str) -> str:
    """Return the clock's local time in a format of `strftime`. Raises ValueError for a time that has no date."""
    seconds = _time.get()
    return (datetime.now() if seconds is None else datetime.fromtimestamp(seconds)).strftime(format)
