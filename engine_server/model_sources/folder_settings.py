"""The settings of a format of files that another library defines: which are read, and which are refused."""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal, NamedTuple

from engine_server.contract.base.quoting import quote

logger = logging.getLogger(__name__)

Verdict = Literal["read", "refused", "harmless"]
# Unknown settings that a log line names.
MOST_NAMED = 10
# Levels of lists and objects that are searched for a value.
MOST_LEVELS = 4


class Setting(NamedTuple):
    """The treatment of one setting."""

    # refused: any value but an empty one and the default is refused.
    verdict: Verdict
    reason: str
    # The value that changes nothing, of a setting that is refused.
    default: Any = None


Settings = dict[str, Setting]


def read(reason: str, *names: str) -> Settings:
    """Return settings that results depend on, and whose values that aren't supported are refused by their reader."""
    return {name: Setting("read", reason) for name in names}


def harmless(reason: str, *names: str) -> Settings:
    """Return settings that change no result here, whatever their value is."""
    return {name: Setting("harmless", reason) for name in names}


def refused(reason: str, **defaults: Any) -> Settings:
    """Return settings that would change results; keyed by name, the value that changes nothing."""
    return {name: Setting("refused", reason, default) for name, default in defaults.items()}


@dataclass(frozen=True)
class Format:
    """The settings of one kind of file, or of an object within it."""

    # As messages and docs/models.md name it.
    name: str
    # The class that defines it.
    library: str
    # Those of the class, by name.
    settings: Settings
    # Those of older versions, and of other programs that write the format.
    others: Settings = field(default_factory=dict)
    # Unknown settings are refused, as the library does.
    closed: bool = False

    @property
    def all(self) -> Settings:
        return self.settings | self.others

    @property
    def refused(self) -> list[str]:
        return [name for name, setting in self.all.items() if setting.verdict == "refused"]

    def check(self, found: Mapping[str, Any], place: str, advice: str = "") -> None:
        """Raise ValueError for settings that are refused, and log those that the library doesn't know, in a line.

        place: the file, and the object in it. advice: how to do without the refused ones.
        """
        known = self.all
        wrong = [
            f"{name} {quote(found[name])} (it takes {_taken(setting)})"
            for name, setting in known.items()
            if setting.verdict == "refused" and name in found and not _changes_nothing(found[name], setting)
        ]
        if wrong:
            raise ValueError(f"{place} has {', '.join(wrong)}, which is not supported{advice}")
        unknown = [name for name in found if name not in known]
        if unknown and self.closed:
            raise ValueError(f"{place} has {named(unknown)}; {self.library} takes {', '.join(known)}")
        if unknown:
            logger.info(
                "%s has settings that %s does not know; they are ignored: %s",
                place,
                self.library,
                named(unknown),
            )


def named(names: Iterable[str]) -> str:
    """Return some names for a person, however many and long they are."""
    rest = iter(names)
    first = ", ".join(quote(name) for name in islice(rest, MOST_NAMED))
    left = sum(1 for _ in rest)
    return f"{first} and {left} more" if left else first


def _taken(setting: Setting) -> str:
    return "null" if is_empty(setting.default) else f"{setting.default!r} or null"


def _changes_nothing(value: Any, setting: Setting) -> bool:
    return is_empty(value) or bool(value == setting.default)


def is_empty(value: Any, levels: int = MOST_LEVELS) -> bool:
    """Return True for null, false, an empty text, and lists and objects of nothing else, within some levels."""
    if isinstance(value, dict | list) and levels:
        parts = value.values() if isinstance(value, dict) else value
        return all(is_empty(part, levels - 1) for part in parts)
    return value is None or value is False or value == ""
