"""Print the chart's README, a table of its values with types from the schema and descriptions from the comments.

python -m charts.values_page >charts/fairlead/README.md
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

Schema = dict[str, Any]

CHART = Path(__file__).parent / "fairlead"
PAGE = re.compile(r"docs/([\w-]+\.md)(#[\w-]+)?")
HEAD = """# Values of the chart

Generated from [values.yaml](values.yaml) and [its schema](values.schema.json) by `make manifests`. Unknown values are
refused. [Installing](../../docs/operations.md#install) has the commands; only `image.repository` must be set.

| value | type | default | |
|---|---|---|---|
"""


class Value(NamedTuple):
    """A value of the chart, or a group of values that has a description of its own."""

    path: str
    # By the schema, and as YAML on one line; empty for a group.
    kind: str
    default: str
    # The text of the comments above and behind it, and lines of an example.
    description: str
    example: list[str]


def values(text: str, schema: Schema) -> Iterator[Value]:
    """Yield the values in the order of the file, each group before its members."""
    lines = text.splitlines()

    def members(mapping: Any, node: Schema, parent: str) -> Iterator[Value]:
        for key, value in mapping.value:
            path = parent + key.value
            found = resolve(node["properties"][key.value], schema)
            above, example = comment_above(lines, key.start_mark.line)
            text = " ".join(filter(None, (above, comment_behind(lines, key, value))))
            if "properties" not in found or not value.value:
                yield Value(path, kind(found), one_line(value), text, example)
                continue
            if text:
                yield Value(path, "", "", text, example)
            yield from members(value, found, path + ".")

    return members(yaml.compose(text), schema, "")


def resolve(node: Schema, schema: Schema) -> Schema:
    while "$ref" in node:
        node = schema["definitions"][node["$ref"].removeprefix("#/definitions/")]
    return node


def comment_above(lines: list[str], end: int) -> tuple[str, list[str]]:
    """Return the sentences of the comment that ends above a line, and its further indented lines."""
    start = end
    while start and lines[start - 1].lstrip().startswith("#"):
        start -= 1
    comment = [line.lstrip().removeprefix("#") for line in lines[start:end]]
    sentences = [line.strip() for line in comment if not line.startswith("  ")]
    return " ".join(sentences), [line.strip() for line in comment if line.startswith("  ")]


def comment_behind(lines: list[str], key: Any, node: Any) -> str:
    """Return the comment on the line of a key, behind its value if that is there."""
    end = node.end_mark if node.end_mark.line == key.start_mark.line else key.end_mark
    behind: str = lines[key.start_mark.line][end.column :]
    return behind.partition("#")[2].strip()


def one_line(node: Any) -> str:
    value = yaml.safe_load(yaml.serialize(node))
    return json.dumps(value, ensure_ascii=False)


def kind(node: Schema) -> str:
    """Return the type of a value by its schema, with its bound."""
    if "enum" in node:
        return ", ".join(f"`{choice}`" for choice in node["enum"] if choice)
    names = node["type"] if isinstance(node["type"], list) else [node["type"]]
    least = f", at least {node['minimum']}" if "minimum" in node else ""
    return " or ".join(names) + least


def row(value: Value) -> str:
    text = PAGE.sub(lambda link: f"[{link[1]}](../../docs/{link[1]}{link[2] or ''})", value.description)
    example = [
        f"`{code.strip()}` {note}".strip()
        for code, _, note in (line.partition("# ") for line in value.example)
    ]
    cells = (
        f"`{value.path}`",
        value.kind,
        f"`{value.default}`" if value.default else "",
        "<br>".join(filter(None, (text, *example))),
    )
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def page() -> str:
    schema = json.loads((CHART / "values.schema.json").read_text())
    rows = map(row, values((CHART / "values.yaml").read_text(), schema))
    return HEAD + "\n".join(rows) + "\n"


if __name__ == "__main__":
    print(page(), end="")
