"""The walk through a schema, keyword by keyword."""

from collections import deque
from typing import Any, NamedTuple

from engine_server.contract.base.bounds import SCHEMA_DEPTH
from engine_server.contract.base.quoting import quote
from engine_server.structured.schemas.bounds import StringRule
from engine_server.structured.schemas.errors import SchemaError
from engine_server.structured.schemas.keywords import KEYWORDS, NO_EFFECT, Kind, Treatment
from engine_server.structured.schemas.meaning import DEFINITION, Meanings
from engine_server.structured.schemas.node import Node
from engine_server.structured.schemas.one_of import branch_types, exclusive
from engine_server.structured.schemas.patterns import read_pattern
from engine_server.structured.schemas.references import References, Target


class RelaxedPart(NamedTuple):
    """A part of a schema that is not enforced."""

    path: str
    reason: str


class Walk:
    """The walk through one document. Schemas that no value matches become false. Takes linear time."""

    def __init__(self, root: Any, path: str) -> None:
        self.parts: dict[RelaxedPart, None] = {}
        self.strings: list[tuple[StringRule, str]] = []
        self.literals = 0
        self._root, self._path = root, path
        self._references = References(root)
        # Definitions of the result, by the paths of references' targets.
        self._names: dict[tuple[str, ...], str] = {}
        self._pending: deque[tuple[str, Target]] = deque()
        # The path of the first schema that no value matches.
        self._impossible: str | None = None

    def run(self) -> Any:
        """Return the relaxed schema. Raises SchemaError."""
        schema = self._schema(self._root, self._path, 0)
        definitions = {}
        while self._pending:
            name, target = self._pending.popleft()
            definitions[name] = self._schema(target.schema, ".".join([self._path, *target.steps]), 2)
        if definitions and isinstance(schema, dict):
            schema["$defs"] = definitions
        meanings = Meanings(schema)
        if not all(meanings.of(one) for one in (schema, *definitions.values())):
            raise SchemaError(self._impossible or self._path, "no value matches the schema", "contradiction")
        return schema

    def _schema(self, schema: Any, path: str, depth: int) -> Any:
        """Return a schema without what no grammar enforces. depth: the containers around it."""
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            raise SchemaError(path, "a schema is an object or a boolean")
        if depth > SCHEMA_DEPTH.limit:
            raise SchemaError(
                path, f"the schema is nested deeper than {SCHEMA_DEPTH.limit} {SCHEMA_DEPTH.things}"
            )
        node = Node(path, self._relax)
        for key, value in schema.items():
            keyword = KEYWORDS.get(key)
            # Null stands for a keyword that is left out, as some libraries write it.
            if keyword is None or (value is None and key != "const"):
                continue
            if keyword.treatment is Treatment.ENFORCED:
                node.keywords[key] = self._value(keyword.kind, key, value, f"{path}.{key}", depth)
            elif key == "not" and value in (True, {}):
                node.impossible = True
            elif value not in NO_EFFECT.get(key, ()):
                self._relax(f"{path}.{key}", key)
        return self._finish(node, schema)

    def _value(self, kind: Kind, key: str, value: Any, path: str, depth: int) -> Any:
        """Return a keyword's value with its schemas relaxed. Raises SchemaError if it is none."""
        match kind:
            case Kind.COUNT:
                if isinstance(value, float) and value.is_integer():
                    value = int(value)
                if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                    raise SchemaError(path, f"{quote(value)} is not a whole number of at least 0")
            case Kind.NUMBER:
                if isinstance(value, bool) or not isinstance(value, int | float):
                    raise SchemaError(path, f"{quote(value)} is not a number")
            case Kind.TEXT:
                if not isinstance(value, str):
                    raise SchemaError(path, f"{quote(value)} is not a string")
            case Kind.NAMED_SCHEMAS:
                if not isinstance(value, dict):
                    raise SchemaError(path, "it is not an object of schemas")
                self.literals += sum(map(len, value))
                return {name: self._schema(one, f"{path}.{name}", depth + 2) for name, one in value.items()}
            case Kind.SCHEMAS:
                if not isinstance(value, list) or not value:
                    raise SchemaError(path, "it is not an array with at least one schema")
                return self._schemas(value, path, depth)
            case Kind.SCHEMA:
                return self._schema(value, path, depth + 1)
            case Kind.ANY if key == "items":
                if isinstance(value, list):
                    return self._schemas(value, path, depth)
                return self._schema(value, path, depth + 1)
        return value

    def _schemas(self, schemas: list[Any], path: str, depth: int) -> list[Any]:
        return [self._schema(one, f"{path}.{number}", depth + 2) for number, one in enumerate(schemas)]

    def _finish(self, node: Node, schema: dict[str, Any]) -> Any:
        """Return a node's schema, once all of its keywords are known."""
        keywords, path = node.keywords, node.path
        if "$ref" in keywords:
            keywords["$ref"] = self._definition(keywords["$ref"], f"{path}.$ref")
        if "oneOf" in keywords and not exclusive(schema["oneOf"], branch_types(schema), self._references):
            self._relax(f"{path}.oneOf", "branches may overlap")
        if "pattern" in keywords and (reason := self._unsupported(keywords["pattern"], f"{path}.pattern")):
            del keywords["pattern"]
            self._relax(f"{path}.pattern", reason)
        if "patternProperties" in keywords:
            self._check_names(keywords, path)
        node.finish()
        if node.impossible:
            self._impossible = self._impossible or path
            return False
        self.literals += sum(len(one) for one in keywords.get("enum", ()) if isinstance(one, str))
        if (rule := StringRule.of(keywords)) != StringRule(format=rule.format):
            self.strings.append((rule, path))
        return node.schema()

    def _check_names(self, keywords: dict[str, Any], path: str) -> None:
        """Drop patterns of property names that can't be enforced; other names are then allowed too."""
        for pattern in list(keywords["patternProperties"]):
            reason = self._unsupported(pattern, f"{path}.patternProperties")
            if reason is not None:
                del keywords["patternProperties"][pattern]
                keywords.pop("additionalProperties", None)
                self._relax(f"{path}.patternProperties", reason)

    def _unsupported(self, text: str, path: str) -> str | None:
        """Return why a pattern can't be enforced. Raises SchemaError for a text that is no pattern."""
        pattern = read_pattern(text)
        if pattern.broken:
            raise SchemaError(path, f"{quote(text)} is no pattern: {pattern.reason}")
        return pattern.reason

    def _definition(self, reference: str, path: str) -> str:
        """Return a reference to a definition of the result."""
        target = self._references.find(reference, path)
        name = self._names.get(target.steps)
        if name is None:
            name = self._names[target.steps] = f"d{len(self._names)}"
            self._pending.append((name, target))
        return DEFINITION + name

    def _relax(self, path: str, reason: str) -> None:
        self.parts[RelaxedPart(path, reason)] = None
