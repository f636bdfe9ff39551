"""The keywords of one schema that depend on each other."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from engine_server.contract.base.quoting import quote
from engine_server.structured.schemas.errors import SchemaError
from engine_server.structured.schemas.keywords import FORMATS, TYPES
from engine_server.structured.schemas.values import json_type

# Keywords that are finished together.
VALUES = frozenset({"enum", "const"})
NUMBERS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})
STRINGS = frozenset({"format", "minLength", "maxLength"})
ARRAYS = frozenset({"items", "additionalItems", "minItems", "maxItems"})
OBJECTS = frozenset({"required", "properties", "minProperties", "maxProperties"})
UNIONS = frozenset({"anyOf", "oneOf", "allOf"})
# The largest bound of a number.
MAX_NUMBER = 1e18
# Keywords that join a schema with others.
JOINS = ("$ref", "anyOf", "oneOf", "allOf")


@dataclass(slots=True)
class Node:
    """A schema in the making: the enforced keywords, each with a checked value."""

    path: str
    # Called with a path and a reason for what is not enforced.
    relax: Callable[[str, str], None]
    keywords: dict[str, Any] = field(default_factory=dict)
    # True if no value matches it.
    impossible: bool = False

    def finish(self) -> None:
        """Check the keywords that are left, and write them as the grammar takes them. Raises SchemaError."""
        self._finish_types()
        for names, finish in (
            (VALUES, self._finish_values),
            (NUMBERS, self._finish_number),
            (STRINGS, self._finish_string),
            (ARRAYS, self._finish_array),
            (OBJECTS, self._finish_object),
            (UNIONS, self._finish_unions),
        ):
            if not names.isdisjoint(self.keywords):
                finish()

    def schema(self) -> dict[str, Any]:
        """Return the schema, which allows null besides if it is OpenAPI's `nullable`."""
        nullable, types = self.keywords.pop("nullable", None) is True, self.keywords.get("type", ())
        if not nullable and len(types) == 1:
            self.keywords["type"] = types[0]
        if not nullable:
            return self.keywords
        if any(key in self.keywords for key in (*JOINS, "enum", "const")):
            return {"anyOf": [self.keywords, {"type": "null"}]}
        if "type" in self.keywords:
            self.keywords["type"] = list(dict.fromkeys([*self.keywords["type"], "null"]))
        return self.keywords

    def _finish_types(self) -> None:
        if (declared := self.keywords.get("type")) is None:
            return
        types = [declared] if isinstance(declared, str) else declared
        if not isinstance(types, list):
            raise SchemaError(f"{self.path}.type", f"{quote(declared)} is no type")
        if wrong := [one for one in types if one not in TYPES]:
            raise SchemaError(f"{self.path}.type", f"{quote(wrong[0])} is no type")
        self.keywords["type"] = types
        self.impossible = self.impossible or not types

    def _finish_values(self) -> None:
        listed = self.keywords.get("enum")
        if listed is not None and not isinstance(listed, list):
            raise SchemaError(f"{self.path}.enum", "it is not an array")
        if (types := self.keywords.get("type")) is None:
            return
        kinds = {*types, *(("integer",) if "number" in types else ())}
        if listed is not None:
            self.keywords["enum"] = listed = [one for one in listed if json_type(one) in kinds]
        self.impossible = self.impossible or listed == []
        if "const" in self.keywords and json_type(self.keywords["const"]) not in kinds:
            self.impossible = True

    def _finish_number(self) -> None:
        for bound in ("minimum", "maximum"):
            key = f"exclusive{bound.capitalize()}"
            value = self.keywords.get(key)
            if isinstance(value, bool):  # draft 4: whether `minimum` itself is excluded
                del self.keywords[key]
                if value and bound in self.keywords:
                    self.keywords[key] = self.keywords.pop(bound)
            elif value is not None and not isinstance(value, int | float):
                raise SchemaError(f"{self.path}.{key}", f"{quote(value)} is not a number")
        for key in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
            if abs(self.keywords.get(key, 0)) > MAX_NUMBER:
                del self.keywords[key]
                self.relax(f"{self.path}.{key}", "bound too large")
        if self.keywords.get("multipleOf", 1) <= 0:
            raise SchemaError(f"{self.path}.multipleOf", "it is not above 0")
        self._check_order("minimum", "maximum", {"integer", "number"})

    def _finish_string(self) -> None:
        if self.keywords.get("format", "") not in FORMATS:
            self.keywords.pop("format", None)
        if not self.keywords.get("minLength"):
            self.keywords.pop("minLength", None)
        self._check_order("minLength", "maxLength", {"string"})

    def _finish_array(self) -> None:
        others = self.keywords.pop("additionalItems", None)
        if isinstance(first := self.keywords.get("items"), list):  # draft 7
            del self.keywords["items"]
            self.keywords |= {"prefixItems": first} if first else {}
            self.keywords |= {} if others is None else {"items": others}
        self._check_order("minItems", "maxItems", {"array"})

    def _finish_object(self) -> None:
        required = self.keywords.get("required")
        if isinstance(required, bool):  # draft 3: of a property
            required = self.keywords.pop("required") and None
        if required is not None and not (
            isinstance(required, list) and all(isinstance(name, str) for name in required)
        ):
            raise SchemaError(f"{self.path}.required", "it is not an array of names")
        names = list(dict.fromkeys(required or ()))
        if required is not None:
            self.keywords["required"] = names
        properties = self.keywords.get("properties", {})
        if self.keywords.get("type") == ["object"]:
            others = (
                True if "patternProperties" in self.keywords else self.keywords.get("additionalProperties")
            )
            if any(properties.get(name, others) is False for name in names):
                self.impossible = True
        self._check_order("minProperties", "maxProperties", {"object"})
        self._finish_counts(len(names), len(properties.keys() - set(names)))

    def _finish_counts(self, required: int, optional: int) -> None:
        """Drop limits of the number of properties that say nothing, or can't be enforced."""
        if self.keywords.get("minProperties", 0) <= required:
            self.keywords.pop("minProperties", None)
        for key in ("minProperties", "maxProperties"):
            if key in self.keywords and (optional or any(join in self.keywords for join in JOINS)):
                del self.keywords[key]
                self.relax(f"{self.path}.{key}", key)

    def _finish_unions(self) -> None:
        branches = self.keywords.pop("oneOf", None)
        if branches is not None and "anyOf" in self.keywords:
            self.keywords["allOf"] = [*self.keywords.get("allOf", ()), {"anyOf": branches}]
        elif branches is not None:
            self.keywords["anyOf"] = branches
        if "anyOf" in self.keywords:
            self.keywords["anyOf"] = [one for one in self.keywords["anyOf"] if one is not False]
            self.impossible = self.impossible or not self.keywords["anyOf"]
        self.impossible = self.impossible or False in self.keywords.get("allOf", ())

    def _check_order(self, least: str, most: str, kinds: set[str]) -> None:
        """Find bounds of which no value of the schema's only types keeps both."""
        lower, upper = self.keywords.get(least), self.keywords.get(most)
        types = self.keywords.get("type")
        if lower is not None and upper is not None and lower > upper and types and kinds.issuperset(types):
            self.impossible = True
