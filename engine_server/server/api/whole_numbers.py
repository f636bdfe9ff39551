"""Whole numbers that a body writes with a fraction of zero or an exponent, such as 16.0 and 1e3.

They are integers in JSON Schema and in vLLM's API; pydantic's strict types, which refuse "5" and true, refuse them too.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError
from pydantic_core import from_json

# Pydantic's type of the error of a number that is not an integer.
NO_INTEGER = "int_type"


def with_whole_numbers(body: bytes | bytearray, error: ValidationError) -> bytes | None:
    """Return a JSON body in which the whole numbers that `error` refuses are integers; None if it refuses none.

    All else stays as it is, numbers of free-form fields included.
    """
    types = {
        one["type"] for one in error.errors(include_url=False, include_context=False, include_input=False)
    }
    if NO_INTEGER not in types:  # the inputs may be large
        return None
    refused = [
        (one["loc"], int(one["input"]))
        for one in error.errors(include_url=False, include_context=False)
        if one["type"] == NO_INTEGER and type(one["input"]) is float and one["input"].is_integer()
    ]
    if not refused:
        return None
    document = from_json(body)
    for path, number in refused:
        replace(document, path, number)
    try:
        return json.dumps(document).encode()
    except ValueError:  # of an integer with thousands of digits
        return None


def replace(document: Any, path: Sequence[int | str], number: int) -> None:
    """Set the number at the path of an error, whose steps are keys, indices, and names of types that were tried."""
    outer: Any = None
    key: int | str = ""
    place = document
    for step in path:
        if (isinstance(place, dict) and step in place) or (
            isinstance(place, list) and isinstance(step, int) and step < len(place)
        ):
            outer, key = place, step
            place = outer[key]
    if outer is not None and place == number:
        outer[key] = number
