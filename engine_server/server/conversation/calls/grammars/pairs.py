"""Grammars of arguments that are pairs of a key and a value, in the order of the schema."""

from __future__ import annotations

from collections.abc import Callable

from engine_server.server.conversation.calls.grammars.literals import quoted
from engine_server.structured.schemas.alternatives import ObjectForm
from engine_server.structured.schemas.arguments import Argument, Arguments

# Returns the alternatives of a value, each a part of a rule; none if there is no value.
Ways = Callable[[Argument], list[str]]


def pairs(name: str, arguments: Arguments, assign: str, separator: str, ways: Ways) -> tuple[str, list[str]]:
    """Return all pairs of the arguments as a part of a rule, and further rules.

    assign, separator: the texts between key and value, and between pairs.
    """
    forms, rules = [], []
    for number, form in enumerate(arguments.forms or [ObjectForm()]):
        own = f"{name}_{number}"
        found = {key: ways(arguments.argument(form, key)) for key in form.properties}
        if all(found[key] for key in form.required if key in found):
            written = {
                key: f"{quoted(key + assign)} ({' | '.join(values)})"
                for key, values in found.items()
                if values
            }
            rules += pairs_in_order(own, written, form, quoted(separator))
            forms.append(f"{own}_first_0")
    return f"({' | '.join(forms)})" if forms else "", rules


def pairs_in_order(name: str, written: dict[str, str], form: ObjectForm, separator: str) -> list[str]:
    """Return the rules of pairs by key, of which a separator precedes all but the first."""
    rules = []
    for number, (key, pair) in enumerate(written.items()):
        first, following = f"{name}_first_{number}", f"{name}_then_{number}"
        next_first, rest = f"{name}_first_{number + 1}", f"{name}_then_{number + 1}"
        if key in form.required:
            rules += [f"{first}: {pair} {rest}", f"{following}: {separator} {pair} {rest}"]
        else:
            rules += [f"{first}: {pair} {rest} | {next_first}", f"{following}: ({separator} {pair})? {rest}"]
    return [*rules, f'{name}_first_{len(written)}: ""', f'{name}_then_{len(written)}: ""']
