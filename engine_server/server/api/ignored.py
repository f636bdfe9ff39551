"""Parts of requests that are ignored: the log names each once, and an answer's header those that change the prompt."""

import logging
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict

logger = logging.getLogger(__name__)

# Of an answer: what its request had that was left out or has no effect, as FIELD (TYPE) with commas between.
HEADER = "X-Fairlead-Ignored"
MAX_NAMED = 16
# Characters of HEADER's value.
MAX_HEADER = 1000
NOT_IN_A_NAME = re.compile(r"[^\w.:/+-]", re.ASCII)
# The number of a tool in the path of a part of it.
TOOL_NUMBER = re.compile(r"^tools\.\d+(\.tools\.\d+)?(?=\.(?!tools\.\d+$))")
# A client that invents names can't fill the log or the memory.
MAX_NAMES = 100
MAX_NAME_LENGTH = 64


class IgnoredNames:
    """The names that were warned about."""

    def __init__(self, noun: str) -> None:
        self._noun = noun
        self._names: set[str] = set()

    def warn(self, names: Iterable[str]) -> None:
        """Log a warning for each name that is new."""
        for name in names:
            if len(self._names) >= MAX_NAMES:
                return
            short = name[:MAX_NAME_LENGTH]
            if short in self._names:
                continue
            self._names.add(short)
            logger.warning("a request has the %s %r; it is ignored", self._noun, short)
            if len(self._names) == MAX_NAMES:
                logger.warning("requests had %d %ss; further ones are not logged", MAX_NAMES, self._noun)


unknown_fields = IgnoredNames("unknown field")
ignored_types = IgnoredNames("part of type")


class IgnoredPart(NamedTuple):
    """A part of a request that is left out of the prompt, or not enforced."""

    # The path in the body, which may have names that the client chose.
    field: str
    type: str

    @property
    def path(self) -> str:
        """The path as headers and errors have it; a long one without its middle."""
        half = (MAX_NAME_LENGTH - len(CUT)) // 2
        whole = len(self.field) <= MAX_NAME_LENGTH
        return cleaned(self.field if whole else self.field[:half] + CUT + self.field[-half:])

    @property
    def kind(self) -> tuple[str, str]:
        """What is equal for equal parts of different tools."""
        return TOOL_NUMBER.sub("tools", self.field), self.type

    def __str__(self) -> str:
        return f"{self.path} ({cleaned(self.type)})"


# In place of the middle of a path.
CUT = ".."


def cleaned(name: str) -> str:
    """Return a client's name for a header or a line of text."""
    return NOT_IN_A_NAME.sub("_", name[:MAX_NAME_LENGTH])


class IgnoredTool(BaseModel):
    """A tool of a type that is not known here, such as those that other servers run themselves."""

    model_config = ConfigDict(strict=True)

    type: str


def ignored_tools(tools: Sequence[object]) -> list[IgnoredPart]:
    """Return those of a request's tools that are ignored."""
    return [
        IgnoredPart(f"tools.{number}", tool.type)
        for number, tool in enumerate(tools)
        if isinstance(tool, IgnoredTool)
    ]


def header_value(parts: Sequence[IgnoredPart]) -> str:
    """Return the value of HEADER, which names the first parts. Equal parts of many tools count as one."""
    different = [str(part) for part in {part.kind: part for part in reversed(parts)}.values()][::-1]
    named = different[:MAX_NAMED]
    while len(", ".join(named)) > MAX_HEADER:
        named.pop()
    if len(different) > len(named):
        named.append(f"and {len(different) - len(named)} more")
    return ", ".join(named)
