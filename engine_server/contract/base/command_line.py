"""The form in which every command's help lists its flags: what each does, and its default in brackets at the end."""

import argparse
from typing import Any

DEFAULT = " (default: "


class Parser(argparse.ArgumentParser):
    """A parser with help in this form."""

    def __init__(self, prog: str, usage: str | None = None, description: str = "", **options: Any) -> None:
        super().__init__(prog, usage, description, formatter_class=FlagHelp, **options)


class FlagHelp(argparse.HelpFormatter):
    def _get_help_string(self, action: argparse.Action) -> str:
        return help_of(action)


def help_of(action: argparse.Action) -> str:
    """Return the help of a flag. A default that depends on other things is in its text already.

    Switches without a value are off by default, and have none; nor have positional and required arguments.
    """
    # Python before 3.13 appends the default of switches that can be turned off.
    text = (action.help or "").removesuffix(" (default: %(default)s)")
    is_switch = action.nargs == 0 and not isinstance(action, argparse.BooleanOptionalAction)
    if DEFAULT in text or is_switch or action.required or not action.option_strings:
        return text
    shown = default_text(action).replace("%", "%%")  # as argparse expands what this returns
    return f"{text}{DEFAULT}{shown})"


def default_text(action: argparse.Action) -> str:
    """Return the default as a user would write it."""
    value = action.default
    if isinstance(value, bool):
        return "on" if value else "off"
    if value in (None, "", [], (), {}):
        return "none"
    if isinstance(value, float):
        return f"{value:g}"
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
