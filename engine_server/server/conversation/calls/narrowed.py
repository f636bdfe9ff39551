"""What calls whose arguments are not JSON can't express of a tool's schema."""

from __future__ import annotations

import re
from typing import Any

from engine_server.server.conversation.calls.form import CallForm
from engine_server.structured.schemas.arguments import Arguments
from engine_server.structured.schemas.errors import SchemaError
from engine_server.structured.schemas.walk import RelaxedPart

MAX_NAME = 256
TOO_MANY = "too many alternatives"


def narrowed_parts(form: CallForm, schema: Any, path: str) -> list[RelaxedPart]:
    """Return the parts of a schema of which calls have only some values.

    schema: as `relax` makes it. path: its own. Raises SchemaError for a property that no call can name.
    """
    if form.tag is None and form.quote is None:
        return []
    arguments = Arguments(schema)
    names = {name: own for own in arguments.forms for name in own.properties}
    parts = [RelaxedPart(path, TOO_MANY)] if arguments.lack_forms else []
    if form.tag is None:
        return parts
    end = form.tag.partition("KEY")[2][0]
    for name, own in names.items():
        if not re.fullmatch(rf"[^{re.escape(end)}\n]{{1,{MAX_NAME}}}", name) or name != name.strip():
            raise SchemaError(f"{path}.properties.{name}", "this model's calls can't have this name", "name")
        if arguments.lack_strings(own, name):
            parts.append(RelaxedPart(f"{path}.properties.{name}", TOO_MANY))
    return parts
