"""The tables of docs/http-api.md: how endpoints treat the fields of requests, one row for fields treated alike."""

import re
from collections.abc import Sequence
from pathlib import Path

from engine_server.server.api.fields import IgnoredMark, Unsupported
from engine_server.server.api.generation_request import ApiRequest

DOCUMENT = Path(__file__).parent.parent / "docs" / "http-api.md"
# In the order of the rows.
TREATMENTS = ("supported", "ignored", "rejected", "-")


def treatments(model: type[ApiRequest]) -> dict[str, str]:
    """Return how a model treats each of its fields, by the field's name in JSON."""
    found = {}
    for name, field in model.model_fields.items():
        ignored = any(isinstance(mark, IgnoredMark) for mark in field.metadata)
        rejected = any(isinstance(mark, Unsupported) for mark in field.metadata)
        found[field.alias or name] = "ignored" if ignored else "rejected" if rejected else "supported"
    return found


def rows(models: Sequence[type[ApiRequest]]) -> list[str]:
    """Return the rows of the table of these models, with a column for each."""
    columns = [treatments(model) for model in models]
    groups: dict[tuple[str, ...], list[str]] = {}
    for name in sorted({name for column in columns for name in column}):
        groups.setdefault(tuple(column.get(name, "-") for column in columns), []).append(f"`{name}`")
    ordered = sorted(groups, key=lambda group: [TREATMENTS.index(treatment) for treatment in group])
    return [f"| {', '.join(groups[group])} | {' | '.join(group)} |" for group in ordered]


def documented_rows(columns: int) -> list[str]:
    """Return the rows of the document's table with this number of columns."""
    row = rf"^\| `[^|]+` (?:\| (?:{'|'.join(TREATMENTS)}) ){{{columns}}}\|$"
    return re.findall(row, DOCUMENT.read_text(), re.MULTILINE)
