"""The layout of a model's answers: its delimiters, and the form of its tool calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from engine_server.engine.conversation.capabilities import (
    ALL_CAPABILITIES,
    Capabilities,
    ShownPictures,
)
from engine_server.requests.reasoning import Mark
from engine_server.server.conversation.marks import MarkTokens
from engine_server.server.conversation.openings import SWITCHES

if TYPE_CHECKING:
    from engine_server.server.conversation.calls.form import CallForm
    from engine_server.server.conversation.calls.reading.events import ReaderFactory
    from engine_server.server.conversation.channels import Channels
    from engine_server.server.conversation.regions import Region

# The region of an answer's text in formats that delimit it.
TEXT_FIELD = "response"
# The forms of ids of calls that chat templates demand: nine letters and digits, or `functions.NAME:INDEX`.
CallIds = Literal["short", "functions"]


@dataclass(frozen=True)
class AnswerRegions:
    """The regions of an answer, with or without calls."""

    regions: tuple[Region, ...] = ()
    marks: MarkTokens = field(default_factory=MarkTokens)
    # Of the calls in a region, by its name.
    readers: Mapping[str, ReaderFactory] = field(default_factory=dict)

    @property
    def is_plain(self) -> bool:
        """True if all text is content."""
        return all(region.open is None for region in self.regions)


@dataclass(frozen=True)
class ReasoningMarks:
    """The delimiters of the reasoning; the first of each is the one that is written here."""

    start: tuple[Mark, ...]
    end: tuple[Mark, ...]

    @property
    def exact(self) -> bool:
        """True if they are tokens, so that no text is taken for one."""
        return all(mark.exact for mark in self.start + self.end)


@dataclass(frozen=True)
class Layout:
    """The layout of one model's answers. All of it is empty for a model that neither reasons nor calls tools."""

    # The name of our format, or the origin of another.
    name: str
    with_calls: AnswerRegions = field(default_factory=AnswerRegions)
    without_calls: AnswerRegions = field(default_factory=AnswerRegions)
    # None for a model that doesn't reason, or whose delimiters are patterns.
    reasoning: ReasoningMarks | None = None
    # Tokens that begin a call, in the reasoning too.
    call_marks: tuple[Mark, ...] = ()
    # None where calls can't be demanded.
    call: CallForm | None = None
    channels: Channels | None = None
    call_id: CallIds | None = None
    # The response template as plain data, with our additions.
    data: Mapping[str, Any] | None = None
    # The chat template has a place for tools.
    takes_tools: bool = True
    # The variables that it reads.
    variables: frozenset[str] = frozenset()
    # What it prints of a history.
    capabilities: Capabilities = ALL_CAPABILITIES
    # The turns in which it prints pictures; None: the model takes none.
    pictures: ShownPictures | None = None
    # Why formats of calls were not used, for a person.
    refusals: tuple[str, ...] = ()

    @property
    def switches_reasoning(self) -> bool:
        """True if the chat template has a variable that switches the reasoning on and off."""
        return not self.variables.isdisjoint(SWITCHES)

    @property
    def calls_tools(self) -> bool:
        return bool(self.with_calls.readers)

    @property
    def inner_marks(self) -> frozenset[str]:
        """The delimiters within answers: those of the reasoning, and the beginnings of calls.

        In channels the first end is that of every part, and another may end the answer.
        """
        marks = list(self.call_marks)
        if self.reasoning is not None:
            ends = self.reasoning.end if self.channels is None else self.reasoning.end[:1]
            marks += [*self.reasoning.start, *ends]
        return frozenset(mark.text for mark in marks)

    def regions(self, calls: bool) -> AnswerRegions:
        """Return the regions of an answer with or without calls."""
        return self.with_calls if calls else self.without_calls


PLAIN_TEXT = Layout("plain text")
