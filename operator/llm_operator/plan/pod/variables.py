"""The order of a container's environment variables.

The kubelet replaces `$(NAME)` in a value by the variable of that name only if that one stands before it.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

REFERENCE = re.compile(r"\$\(([^()]+)\)")

Variable = dict[str, Any]


def by_name(variables: Iterable[Variable]) -> dict[str, Variable]:
    return {variable["name"]: variable for variable in variables}


def overridden(base: Mapping[str, Variable], given: Mapping[str, Variable]) -> list[Variable]:
    """Return the variables of `base` without those that are given again, and then the given ones in their order.

    A variable of `base` that refers to a given one, directly or through another of `base`, follows the given one.
    """
    places = {name: place for place, name in enumerate(given)}
    variables: list[Variable] = []
    followers: defaultdict[int, list[Variable]] = defaultdict(list)
    for name, variable in base.items():
        if name in given:
            continue
        needed = [places[reference] for reference in references(variable) if reference in places]
        if needed:
            places[name] = max(needed)
            followers[places[name]].append(variable)
        else:
            variables.append(variable)
    for place, variable in enumerate(given.values()):
        variables += [variable, *followers[place]]
    return variables


def references(variable: Variable) -> Iterator[str]:
    """Yield the names of the variables that a value refers to."""
    for found in REFERENCE.finditer(str(variable.get("value", ""))):
        yield found[1]
