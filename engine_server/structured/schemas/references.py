"""References within a schema."""

from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import unquote

from engine_server.contract.base.quoting import quote
from engine_server.structured.schemas.errors import SchemaError


class Target(NamedTuple):
    """What a reference leads to."""

    # Path from the document's root.
    steps: tuple[str, ...]
    schema: Any


class References:
    """The targets of a document's references: pointers from its root, anchors, and ids of its parts."""

    def __init__(self, root: Any) -> None:
        self._root = root
        # Anchors as #NAME, and ids; found with the first reference that is no pointer.
        self._named: dict[str, Target] | None = None

    def find(self, reference: str, path: str) -> Target:
        """Return a reference's target. Raises SchemaError."""
        base = self._root.get("$id") if isinstance(self._root, dict) else None
        local = reference.removeprefix(base) if isinstance(base, str) and base else reference
        if local in ("", "#"):
            return Target((), self._root)
        if local.startswith("#/"):
            return self._follow(local, path)
        if self._named is None:
            self._named = dict(named(self._root))
        if local not in self._named:
            reason = "does not exist" if local.startswith("#") else "is in another document"
            raise SchemaError(path, f"the reference {quote(reference)} {reason}", "reference")
        return self._named[local]

    def _follow(self, pointer: str, path: str) -> Target:
        steps = [step.replace("~1", "/").replace("~0", "~") for step in unquote(pointer[2:]).split("/")]
        value = self._root
        for step in steps:
            if isinstance(value, dict) and step in value:
                value = value[step]
            elif isinstance(value, list) and step.isdecimal() and int(step) < len(value):
                value = value[int(step)]
            else:
                raise SchemaError(path, f"the reference {quote(pointer)} does not exist", "reference")
        return Target(tuple(steps), value)


def named(root: Any) -> Iterator[tuple[str, Target]]:
    """Yield the parts of a document that have an anchor or an id, by what references call them."""
    parts: list[Target] = [Target((), root)]
    while parts:
        steps, value = part = parts.pop()
        if isinstance(value, dict):
            for key in ("$anchor", "$dynamicAnchor"):
                if isinstance(name := value.get(key), str):
                    yield f"#{name}", part
            if isinstance(name := value.get("$id"), str):
                yield name, part
            parts += [Target((*steps, key), one) for key, one in value.items()]
        elif isinstance(value, list):
            parts += [Target((*steps, str(number)), one) for number, one in enumerate(value)]
