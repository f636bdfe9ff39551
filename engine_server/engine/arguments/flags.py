"""Command-line flags from the fields of a dataclass, and the parsers of their values."""

import argparse
import inspect
import json
import re
from dataclasses import MISSING, Field, fields
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

DTYPE_ALIASES = {
    "half": "float16",
    "float": "float32",
    "bf16": "bfloat16",
    "fp16": "float16",
    "fp32": "float32",
}
SIZE_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30}
POSITIONAL = "model"


def parse_size(text: str) -> int:
    """Return the bytes of `4GiB`, `512Mi`, `2G` or a bare number."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmg]i?)?b?", text.strip().lower())
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no size; give bytes, or a number with KiB, MiB or GiB")
    return int(float(match[1]) * SIZE_UNITS[match[2] or ""])


def full_dtype(name: str) -> str:
    """Return torch's name of a dtype that may be given by an alias."""
    return DTYPE_ALIASES.get(name, name)


def context_length(text: str) -> int:
    """Return a number of tokens; `auto` is -1."""
    return -1 if text == "auto" else int(text)


def word_list(text: str) -> list[str]:
    """Return words that are separated by commas."""
    words = text.split(",")
    if not all(words):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of words, as no,yes")
    return words


def json_object(text: str) -> dict[str, Any]:
    """Return a JSON object as a dict."""
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"{text!r} is no JSON object")
    return value


def compilation(text: str) -> int | dict[str, Any]:
    """Return a level of compilation, or its settings as a JSON object."""
    return int(text) if text.isdecimal() else json_object(text)


def add_flags(parser: argparse.ArgumentParser, dataclass: type) -> argparse.ArgumentParser:
    """Add a flag for each field of `dataclass`, parsed by the field's type; `model` is positional.

    A field's metadata holds `help` and `options` for argparse. Each flag may be spelled with underscores too. The flags
    are grouped by the class that defines them, under the first line of its docstring.
    """
    hints = get_type_hints(dataclass)
    for kind in dataclass.__mro__:
        own = [item for item in fields(dataclass) if item.name in inspect.get_annotations(kind)]
        if not own:
            continue
        title = (kind.__doc__ or "").partition("\n")[0].rstrip(".")
        group = parser.add_argument_group(title)
        for item in own:
            default = item.default if item.default_factory is MISSING else item.default_factory()
            options = {"help": item.metadata["help"], "default": default} | item.metadata["options"]
            if item.name == POSITIONAL:
                group.add_argument(item.name, nargs="?", **options)
            else:
                _add_flag(group, item, _reader(hints[item.name]) | options)
    return parser


def _add_flag(parser: "argparse._ArgumentGroup", item: Field[Any], options: dict[str, Any]) -> None:
    flag = "--" + item.name.replace("_", "-")
    parser.add_argument(flag, **options)
    underscored = f"--{item.name}"
    if underscored != flag:
        hidden: dict[str, Any] = {"help": argparse.SUPPRESS, "default": argparse.SUPPRESS}
        parser.add_argument(underscored, dest=item.name, **options | hidden)
        if options.get("action") is argparse.BooleanOptionalAction:
            parser.add_argument(f"--no_{item.name}", dest=item.name, action="store_false", **hidden)


def _reader(hint: Any) -> dict[str, Any]:
    """Return argparse's options to read a value of this type."""
    kind = hint
    if NoneType in get_args(hint):
        kind = next(part for part in get_args(hint) if part is not NoneType)
    if kind is bool:
        return {"action": argparse.BooleanOptionalAction}
    if get_origin(kind) is Literal:
        return {"choices": get_args(kind), "type": type(get_args(kind)[0])}
    if get_origin(kind) is list:
        return {"action": "extend", "nargs": "+"}
    if kind is NoneType:
        return {"type": str}
    return {"type": kind}
