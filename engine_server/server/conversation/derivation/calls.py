"""The fixed texts of calls: what a template prints around all of them, and around the parts of each."""

from __future__ import annotations

from dataclasses import dataclass

from engine_server.server.conversation.calls.grammars.literals import IDENTIFIER, INDEX
from engine_server.server.conversation.derivation.arguments import ArgumentForm
from engine_server.server.conversation.derivation.pieces import common_end, common_start, pieces
from engine_server.server.conversation.derivation.probes import (
    CALL,
    NAMES,
    TWO_CALLS,
    Answer,
    Probes,
    UnknownFormError,
)

(_, ONE), (_, OTHER) = TWO_CALLS


@dataclass(frozen=True, slots=True)
class CallTexts:
    """The texts of calls, with IDENTIFIER and INDEX in the places of what differs from call to call."""

    before: str
    # Of one call: before its name, between name and arguments, and after them.
    begin: str
    middle: str
    end: str
    separator: str
    after: str
    at_most_one: bool


@dataclass(frozen=True, slots=True)
class AroundContent:
    """What a template prints around the content of an answer without calls, and around calls without content."""

    before: str
    after: str
    # The end of a reasoning; "" where there is none.
    reasoning_close: str
    # The marks that end an answer.
    turn_ends: tuple[str, ...]

    def after_start(self, text: str) -> str:
        """Return a text before the first call without what precedes content too, such as an empty reasoning."""
        text = text[len(common_start(self.before, text)) :]
        return (text.rpartition(self.reasoning_close)[2] if self.reasoning_close else text).lstrip()

    def before_end(self, text: str) -> str:
        """Return a printed answer, or its end, without what follows content too."""
        return text[: len(text) - len(common_end(text, self.after)[0])]

    def in_several_turns(self, text: str) -> bool:
        """Return True if a turn ends within a printed answer."""
        return any(mark in self.before_end(text) for mark in self.turn_ends)

    def in_turn(self, tail: str) -> str:
        """Return the part of a text after the last arguments that belongs to the answer."""
        tail = self.before_end(tail)
        return tail[: min((tail.find(mark) for mark in self.turn_ends if mark in tail), default=len(tail))]


def derive_texts(probes: Probes, form: ArgumentForm, around: AroundContent) -> CallTexts:
    """Return the texts of calls. Raises UnknownFormError."""
    two = probes.render(Answer(calls=TWO_CALLS))
    if two is None or NAMES[1] not in two.text:
        return texts_of_one(probes, form, around)
    if two.text.count(NAMES[0]) != 1 or two.text.count(NAMES[1]) != 1:
        raise UnknownFormError("the name of a call is printed twice")
    first, first_middle, rest = divided(two.text, form, NAMES[0], ONE, probes.call_id(0, NAMES[0]))
    between, second_middle, tail = divided(rest, form, NAMES[1], OTHER, probes.call_id(1, NAMES[1]))
    head, tail = around.after_start(first), around.in_turn(tail)
    own, second_own = common_end(head, between, equal_but_for_index)
    space = len(own) - len(own.lstrip())
    begin, middle = merged(own[space:], second_own[space:]), merged(first_middle, second_middle)
    if begin is None or middle is None:
        raise UnknownFormError("two calls are not printed alike")
    shared = between[: len(between) - len(second_own) + space]
    end = common_start(shared, tail).rstrip()
    return CallTexts(
        before=head[: len(head) - len(own) + space],
        begin=begin,
        middle=middle,
        end=end,
        separator=shared[len(end) :],
        after=tail[len(end) :].rstrip(),
        at_most_one=False,
    )


def texts_of_one(probes: Probes, form: ArgumentForm, around: AroundContent) -> CallTexts:
    """Return the texts of calls for a template that prints one in an answer."""
    one = probes.render(Answer(calls=CALL))
    if one is None or one.text.count(NAMES[0]) != 1:
        raise UnknownFormError("the name of a call is printed twice")
    first, middle, rest = divided(one.text, form, NAMES[0], ONE, probes.call_id(0, NAMES[0]))
    end = around.in_turn(rest).rstrip()
    return CallTexts("", around.after_start(first), middle, end, "", "", at_most_one=True)


def divided(
    text: str, form: ArgumentForm, name: str, arguments: dict[str, str], call_id: str
) -> tuple[str, str, str]:
    """Return the texts before a call's name, between name and arguments, and after them."""
    text = text if name in call_id else text.replace(call_id, IDENTIFIER)
    before, _, after = text.partition(name)
    start, end = form.span(after, 0, arguments)
    return before, after[:start], after[end:]


def equal_but_for_index(first: str, second: str) -> bool:
    """Return True for pieces that are equal, or the numbers 0 and 1 that count calls."""
    return first == second or (first == "0" and second == "1")


def merged(first: str, second: str) -> str | None:
    """Return what the first and the second call have in one place, with INDEX for numbers; None if they differ."""
    pairs = list(zip(pieces(first), pieces(second), strict=False))
    if len(pieces(first)) != len(pieces(second)) or not all(equal_but_for_index(*pair) for pair in pairs):
        return None
    return "".join(one if one == other else INDEX for one, other in pairs)
