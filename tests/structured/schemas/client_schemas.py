"""Schemas as clients write them: by pydantic itself, as zod prints its types, and tools of public MCP servers."""

import json
from datetime import date, datetime
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import AnyUrl, BaseModel, ConfigDict, Field, SecretStr


class Color(StrEnum):
    RED = "red"
    GREEN = "green"


class Address(BaseModel):
    street: str = Field(min_length=1, max_length=120)
    zip: str = Field(pattern=r"^\d{5}(-\d{4})?$")


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int = Field(ge=0, le=9)


class Dog(BaseModel):
    kind: Literal["dog"]
    good: bool = True


class Person(BaseModel):
    """A person."""

    model_config = ConfigDict(extra="forbid")

    name: Annotated[str, Field(max_length=40, examples=["Ada"])]
    born: date | None = None
    seen: datetime | None = None
    address: Address | None = None
    color: Color = Color.RED
    level: Literal[1, 2, 3] | None = None
    pet: Annotated[Cat | Dog, Field(discriminator="kind")]
    scores: dict[str, float] = {}
    pair: tuple[int, str]
    id: UUID
    secret: SecretStr | None = None


class Node(BaseModel):
    value: int
    children: list["Node"] = Field(default=[], max_length=3)


class Link(BaseModel):
    url: AnyUrl = Field(max_length=2083)
    price: Decimal = Field(gt=0, le=100, max_digits=5, decimal_places=2)
    tags: set[str] = Field(max_length=3)
    either: int | str | None = None
    data: bytes = b""


PYDANTIC: dict[str, dict[str, Any]] = {
    model.__name__: model.model_json_schema() for model in (Address, Person, Node, Link)
}

DRAFT_7 = {"$schema": "http://json-schema.org/draft-07/schema#", "additionalProperties": False}
DRAFT_2020 = {"$schema": "https://json-schema.org/draft/2020-12/schema", "additionalProperties": False}
SAFE = {"minimum": -9007199254740991, "maximum": 9007199254740991}

ZOD_3: dict[str, dict[str, Any]] = {
    "user": {
        "type": "object",
        "properties": {
            "email": {"type": "string", "format": "email"},
            "id": {"type": "string", "pattern": "^[cC][^\\s-]{8,}$"},
            "name": {"type": ["string", "null"], "minLength": 1, "maxLength": 64},
            "slug": {"type": "string", "pattern": "^(?!-)[a-z-]+$"},
            "pair": {
                "type": "array",
                "minItems": 2,
                "maxItems": 2,
                "items": [{"type": "number"}, {"type": "string"}],
            },
            "age": {"type": "integer", "exclusiveMinimum": 0},
            "big": {"type": "integer", "format": "int64"},
            "when": {"type": "string", "format": "date-time"},
            "kinds": {"type": "array", "uniqueItems": True, "items": {"type": "string", "enum": ["a", "b"]}},
            "gone": {"not": {}},
        },
        "required": ["email", "id", "name", "slug", "pair"],
        **DRAFT_7,
    },
    "shape": {
        "type": "object",
        "properties": {
            "shape": {
                "anyOf": [
                    {
                        "type": "object",
                        "properties": {"kind": {"type": "string", "const": "circle"}, "r": {"type": "number"}},
                        "required": ["kind", "r"],
                        "additionalProperties": False,
                    },
                    {
                        "type": "object",
                        "properties": {
                            "kind": {"type": "string", "const": "dot"},
                            "at": {"type": "array", "items": {}},
                        },
                        "required": ["kind"],
                        "additionalProperties": False,
                    },
                ]
            },
            "other": {"$ref": "#/properties/shape"},
            "labels": {
                "type": "object",
                "additionalProperties": {"type": "string"},
                "propertyNames": {"minLength": 1},
            },
        },
        "required": ["shape"],
        **DRAFT_7,
    },
}  # fmt: skip

ZOD_4: dict[str, dict[str, Any]] = {
    "account": {
        "type": "object",
        "properties": {
            "email": {
                "type": "string",
                "format": "email",
                "pattern": "^(?!\\.)(?!.*\\.\\.)([A-Za-z0-9_'+\\-\\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\\-]*\\.)+"
                "[A-Za-z]{2,}$",
            },
            "id": {
                "type": "string",
                "format": "uuid",
                "pattern": "^([0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[1-8][0-9a-fA-F]{3}-[89abAB][0-9a-fA-F]{3}-[0-9a-fA-F]{12}|"
                "00000000-0000-0000-0000-000000000000)$",
            },
            "day": {
                "type": "string",
                "format": "date",
                "pattern": "^(?:(?:\\d\\d[2468][048]|\\d\\d0[48])-02-29|\\d{4}-(?:(?:0[13578]|1[02])-"
                "(?:0[1-9]|[12]\\d|3[01])|(?:02)-(?:0[1-9]|1\\d|2[0-8])))$",
            },
            "count": {"type": "integer", **SAFE},
            "key": {"type": "string", "format": "ulid", "pattern": "^[0-9A-HJKMNP-TV-Za-hjkmnp-tv-z]{26}$"},
            "data": {
                "type": "string",
                "format": "base64",
                "contentEncoding": "base64",
                "pattern": "^$|^(?:[0-9a-zA-Z+/]{4})*(?:(?:[0-9a-zA-Z+/]{2}==)|(?:[0-9a-zA-Z+/]{3}=))?$",
            },
            "nick": {"anyOf": [{"type": "string", "maxLength": 20}, {"type": "null"}]},
            "record": {
                "type": "object",
                "propertyNames": {"type": "string"},
                "additionalProperties": {"type": "boolean"},
            },
            "pair": {"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer", **SAFE}]},
            "role": {"default": "user", "type": "string", "enum": ["user", "admin"]},
        },
        "required": ["email", "id", "count", "nick", "role"],
        **DRAFT_2020,
    },
    "tree": {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "children": {"type": "array", "items": {"$ref": "#"}, "maxItems": 2},
            "never": {"not": {}},
        },
        "required": ["name"],
        **DRAFT_2020,
    },
    "result": {
        "type": "object",
        "properties": {
            "result": {
                "oneOf": [
                    {"$ref": "#/$defs/Done"},
                    {
                        "type": "object",
                        "properties": {"status": {"type": "string", "const": "failed"}, "error": {"type": "string"}},
                        "required": ["status", "error"],
                        "additionalProperties": False,
                    },
                ]
            }
        },
        "required": ["result"],
        "$defs": {
            "Done": {
                "id": "Done",
                "type": "object",
                "properties": {"status": {"type": "string", "const": "done"}, "at": {"type": "number"}},
                "required": ["status"],
                "additionalProperties": False,
            }
        },
        **DRAFT_2020,
    },
}  # fmt: skip

# Arguments of every kind, each of which is required.
PLACE = {
    "type": "object",
    "properties": {"x": {"type": "integer"}},
    "required": ["x"],
    "additionalProperties": False,
}
LOOP = {"anyOf": [{"type": "null"}, {"type": "array", "items": {"$ref": "#/$defs/Loop"}, "maxItems": 2}]}
TEXT = {"type": "string"}
KINDS: dict[str, Any] = {
    "length": {**TEXT, "minLength": 2, "maxLength": 4},
    "optional": {"anyOf": [{**TEXT, "maxLength": 3}, {"type": "null"}]},
    "nullable": {**TEXT, "nullable": True},
    "listed with null": {"enum": ["x", "y<", None]},
    "typeless numbers": {"enum": [1, 2.5]},
    "constant": {"const": "z"},
    "reference": {"$ref": "#/$defs/Place"},
    "recursion": {"$ref": "#/$defs/Loop"},
    "pattern": {**TEXT, "pattern": "b|^c+$", "minLength": 2, "maxLength": 9},
    "pattern with the mark": {**TEXT, "pattern": "^<[a-c]+>$"},
    "text or number": {"type": ["string", "integer"], "maximum": 5},
    "listed or boolean": {"anyOf": [{"enum": ["u", "v"]}, {"type": "boolean"}]},
    "two lengths": {"allOf": [{**TEXT, "minLength": 1}, {"maxLength": 2}]},
    "text or object": {"oneOf": [{**TEXT, "maxLength": 2}, PLACE]},
    "list": {"type": "array", "items": {**TEXT, "maxLength": 2}, "maxItems": 2},
    "anything": {},
    "hinted": {"properties": {"a": {"type": "null"}}, "additionalProperties": False},
}
ARGUMENTS: dict[str, Any] = {
    "type": "object",
    "$defs": {"Place": PLACE, "Loop": LOOP},
    "properties": {**KINDS, "child": {"$ref": "#"}},
    "required": list(KINDS),
    "additionalProperties": False,
}

# By server and tool.
MCP: dict[str, dict[str, dict[str, Any]]] = json.loads((Path(__file__).parent / "mcp_tools.json").read_text())
MCP_TOOLS = {f"{server}.{name}": schema for server, tools in MCP.items() for name, schema in tools.items()}
LIBRARIES = {
    **{f"pydantic {name}": schema for name, schema in PYDANTIC.items()},
    **{f"zod 3 {name}": schema for name, schema in ZOD_3.items()},
    **{f"zod 4 {name}": schema for name, schema in ZOD_4.items()},
}
ALL = LIBRARIES | MCP_TOOLS | {"arguments": ARGUMENTS}
