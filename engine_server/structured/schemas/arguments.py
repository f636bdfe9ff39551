"""The arguments of a tool, each on its own, as formats of calls with a tag for each argument have them."""

from collections.abc import Mapping
from functools import cached_property
from typing import Any, NamedTuple

from engine_server.structured.schemas.alternatives import (
    MAX_ALTERNATIVES,
    ObjectForm,
    StringRules,
    objects,
    strings,
)
from engine_server.structured.schemas.errors import SchemaError
from engine_server.structured.schemas.meaning import ANYTHING, Allowed, Meanings
from engine_server.structured.schemas.relaxed import relax_keywords

TEXT = Allowed.of_types(["string"])
# Types that keywords hint at, of a schema that allows all.
HINTS = {
    "object": ("properties", "required", "additionalProperties", "patternProperties"),
    "array": ("items", "prefixItems", "minItems", "maxItems"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
}


class Argument(NamedTuple):
    """What an argument may be."""

    allowed: Allowed
    # The bounds of strings: a string keeps all of one alternative.
    strings: list[StringRules]
    # The schema of values of other types; with its own `$defs`.
    others: Any


class Arguments:
    """The arguments that a schema allows. Its references lead to its own `$defs`, as `relax` makes it."""

    def __init__(self, schema: Any) -> None:
        self._definitions = schema.get("$defs", {}) if isinstance(schema, dict) else {}
        self._meanings = Meanings(schema)
        found = objects(schema, self._meanings)
        # Alternatives for all arguments together.
        self.forms = found[:MAX_ALTERNATIVES]
        # Some of them are left out.
        self.lack_forms = len(found) > MAX_ALTERNATIVES

    def argument(self, form: ObjectForm, name: str) -> Argument:
        """Return what an argument of a form may be."""
        schema = form.schema(name)
        allowed = self._allowed(schema)
        others: Any = {"allOf": [schema], "type": sorted(allowed.types - {"string"})}
        if self._definitions:
            others["$defs"] = self._definitions
        return Argument(allowed, strings(schema, self._meanings)[:MAX_ALTERNATIVES], others)

    def lack_strings(self, form: ObjectForm, name: str) -> bool:
        """Return True if some alternatives for the strings of an argument are left out."""
        return len(strings(form.schema(name), self._meanings)) > MAX_ALTERNATIVES

    def allowed(self, name: str) -> Allowed:
        """Return what an argument may be in any form."""
        found = Allowed()
        for form in self.forms:
            found = found.union(self._allowed(form.schema(name)))
        return found or TEXT

    def _allowed(self, schema: Any) -> Allowed:
        """Return what a schema allows; a schema that says nothing of types stands for a string, or for its hints."""
        allowed = self._meanings.of(schema)
        if allowed != ANYTHING:
            return allowed
        hints = [kind for kind, keys in HINTS.items() if not schema.keys().isdisjoint(keys)]
        return Allowed.of_types(hints) if hints else TEXT


class ArgumentTypes:
    """What the arguments of a tool may be, for the reader of calls; found with the first argument."""

    def __init__(self, parameters: Mapping[str, Any] | None) -> None:
        self._parameters = parameters

    def get(self, name: str) -> Allowed:
        """Return what an argument may be; a string where the tool's schema doesn't say."""
        return self._arguments.allowed(name) if self._arguments is not None else TEXT

    @cached_property
    def _arguments(self) -> Arguments | None:
        try:
            return Arguments(relax_keywords(self._parameters or {}, "").schema)
        except SchemaError:
            return None


NO_TYPES = ArgumentTypes(None)
