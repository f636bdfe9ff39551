"""The warning about request fields that the server doesn't know, once for each name."""

import logging
from collections.abc import Iterable

logger = logging.getLogger(__name__)

# A client that invents names can't fill the log or the memory.
MAX_NAMES = 100
MAX_NAME_LENGTH = 64


class UnknownFields:
    """The names that were warned about."""

    def __init__(self) -> None:
        self._names: set[str] = set()

    def warn(self, names: Iterable[str]) -> None:
        """Log a warning for each name that is new."""
        for name in names:
            if len(self._names) >= MAX_NAMES:
                return
            short = name[:MAX_NAME_LENGTH]
            if short in self._names:
                continue
            self._names.add(short)
            logger.warning("a request has the unknown field %r; it is ignored", short)
            if len(self._names) == MAX_NAMES:
                logger.warning("requests had %d unknown fields; further ones are not logged", MAX_NAMES)


unknown_fields = UnknownFields()
