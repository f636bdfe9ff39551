"""The schemas of one request, relaxed together, since one grammar has them all."""

import hashlib
import threading
from collections.abc import Mapping
from typing import Any

import msgspec

from engine_server.contract.base.bounded_map import BoundedMap
from engine_server.structured.schemas.errors import SchemaError
from engine_server.structured.schemas.relaxed import Relaxed, fit, refusal, relax_keywords

# Requests whose schemas are kept: those of one conversation are equal.
MAX_REQUESTS = 32

# By the schemas' paths.
Outcomes = Mapping[str, Relaxed | SchemaError]


class SchemaCache:
    """The outcomes of the latest requests' schemas. Any thread may call `relax`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._outcomes = BoundedMap[bytes, Outcomes](MAX_REQUESTS)

    def relax(self, schemas: Mapping[str, Any], strict: bool) -> Outcomes:
        """Return the schemas of one grammar as it can enforce them, or the errors of those that can't be used.

        strict: make what would be relaxed an error.
        """
        digest = hashlib.sha256(msgspec.msgpack.encode((schemas, strict))).digest()
        with self._lock:
            found = self._outcomes.find(digest)
        if found is not None:
            return found
        outcomes = relax_together(schemas, strict)
        with self._lock:
            self._outcomes.keep(digest, outcomes)
        return outcomes


def relax_together(schemas: Mapping[str, Any], strict: bool) -> Outcomes:
    """Return the outcome of each schema, by its path."""
    outcomes: dict[str, Relaxed | SchemaError] = {}
    for path, schema in schemas.items():
        try:
            outcomes[path] = relax_keywords(schema, path)
        except SchemaError as error:
            outcomes[path] = error
    usable = {path: one for path, one in outcomes.items() if isinstance(one, Relaxed)}
    for path, relaxed in zip(usable, fit(list(usable.values())), strict=True):
        outcomes[path] = refusal(relaxed.parts[0]) if strict and relaxed.parts else relaxed
    return outcomes
