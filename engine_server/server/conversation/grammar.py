"""One grammar for all that is demanded of an answer: its calls, the form of its text, and the reasoning before both.

It is written in llguidance's variant of Lark's syntax, with the form of the text as a second grammar, `@form`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from engine_server.requests.structured_outputs import StructuredOutputsParams
from engine_server.server.conversation.calls.form import call_rules
from engine_server.server.conversation.calls.grammars.dialect import any_rules
from engine_server.server.conversation.calls.grammars.literals import Literals, fixed_text, pattern_of, quoted
from engine_server.server.conversation.channels import Channels
from engine_server.server.conversation.layout import Layout, ReasoningMarks
from engine_server.server.conversation.start import StartState
from engine_server.server.generation.tool_use import ToolUse

# Models write line ends between their reasoning and the answer.
SPACE = r"SPACE: /[ \t\r\n]{1,16}/"
# No token that is a mark is text.
TEXT = r"TEXT: /(?s:.*)/"


@dataclass(frozen=True, slots=True)
class AnswerGrammar:
    """The grammar of an answer."""

    params: StructuredOutputsParams
    # White space may precede the answer's text.
    space_first: bool = False
    # The answer is calls or text of the form, after its reasoning, and nothing else.
    demands: bool = True


def answer_grammar(
    layout: Layout, state: StartState, use: ToolUse | None, form: StructuredOutputsParams | None
) -> AnswerGrammar | None:
    """Return the grammar that holds an answer to what is demanded of it; None if nothing is.

    form: that of the answer's text, which has no effect where a call is demanded.
    """
    calls = use if use is not None and use.callable and layout.call is not None else None
    if calls is not None and calls.choice == "required":
        form = None
    elif form is None and (calls is None or not calls.strict):
        return None
    elif state.in_content:
        calls = None
    reasoning = layout.reasoning if state.reasoning != "past" else None
    channels = None if state.in_content else layout.channels
    if form is not None and calls is None and reasoning is None and channels is None:
        return AnswerGrammar(form)
    return GrammarWriter(layout, calls, form, channels).grammar(reasoning, inside=state.reasoning == "inside")


def call_grammar(layout: Layout, use: ToolUse, name: str) -> StructuredOutputsParams:
    """Return the grammar of a call of one tool, without its beginning. layout: one in which calls can be demanded."""
    return GrammarWriter(layout, replace(use, choice="required", name=name), None, None).call()


class GrammarWriter:
    """Writes the grammar of one answer, rule by rule."""

    def __init__(
        self,
        layout: Layout,
        use: ToolUse | None,
        form: StructuredOutputsParams | None,
        channels: Channels | None,
    ) -> None:
        """channels: None for an answer whose parts need no header."""
        self._calls = layout.call
        self._use = use
        self._form = form
        self._channels = channels
        self._literals = Literals(layout.with_calls.marks)
        self._rules = [SPACE, TEXT]

    def grammar(self, reasoning: ReasoningMarks | None, inside: bool) -> AnswerGrammar:
        """Return the grammar. reasoning: what may precede the answer proper; inside: the prompt has begun it."""
        free = self._form is None and self._use is not None and self._use.choice != "required"
        gated = reasoning is not None and reasoning.exact
        if not free:
            start = self._demanded()
        elif self._channels is not None:
            start = self._parts_with_calls(self._channels)
        else:
            avoided = [] if reasoning is None or gated or inside else [mark.text for mark in reasoning.start]
            start = self._text_with_calls(avoided)
        if gated and not free:
            start = f"SPACE? {start}"
        elif reasoning is not None and not gated and (inside or not free or self._channels is None):
            start = f"{self._thoughts(reasoning, inside)} {start}"
        params = StructuredOutputsParams(
            grammar="\n".join([f"start: {start}", *self._rules]), form=self._form
        )
        return AnswerGrammar(params, space_first=gated and not free, demands=not free)

    def call(self) -> StructuredOutputsParams:
        """Return the grammar of a call without its beginning."""
        assert self._use is not None
        return StructuredOutputsParams(
            grammar="\n".join([f"start: {self._one_call(self._use)}", *self._rules])
        )

    def _demanded(self) -> str:
        """Return an answer that is calls, or text of the form."""
        alternatives = []
        if self._use is not None:
            alternatives.append(self._any_calls(self._use))
        if self._form is not None:
            alternatives.append(f"{self._final_header()} @form")
        return f"({' | '.join(alternatives)})"

    def _text_with_calls(self, avoided: list[str]) -> str:
        """Return text in which the beginning of a call starts one. avoided: texts with which it does not begin."""
        assert self._use is not None and self._calls is not None
        beginning = self._calls.before + self._calls.beginning
        if self._calls.at_start:
            return f"({self._any_calls(self._use)} | {self._text_without([*avoided, beginning[0]])})"
        first_text = self._text_without(avoided)
        if self._literals.begins_with_token(beginning):
            calls = self._any_calls(self._use)
            more = f"({calls} TEXT)*" if self._use.parallel else f"{calls}?"
            return f"{first_text} {more}"
        # A lazy rule ends at the first occurrence of the beginning.
        trigger = fixed_text(beginning, self._literals)
        self._rules += [f"found_first[lazy]: {first_text} {trigger}", f"found[lazy]: TEXT {trigger}"]
        call = f"{self._one_call(self._use)} {self._literals.write(self._calls.after)}"
        more = f"(found {call})* TEXT" if self._use.parallel else ""
        return f"({first_text} | found_first {call} {more})"

    def _parts_with_calls(self, channels: Channels) -> str:
        """Return an answer's parts in channels, of which those that call a tool are calls."""
        assert self._use is not None
        write = self._literals.write
        named = f"{write(channels.channel)} {self._free_channels(channels)}"
        self._rules.append(f"part: {named} {write(channels.body)} TEXT | {self._any_calls(self._use)}")
        return f"part ({write(channels.end[0] + channels.start + channels.role)} part)*"

    def _free_channels(self, channels: Channels) -> str:
        """Return the names of channels with any text, and its type."""
        if channels.type is None:
            return f"({quoted(channels.reasoning)} | {quoted(channels.final)})"
        return f'/[a-z]{{1,32}}/ (" "? {self._literals.write(channels.type)} /[a-z]{{1,32}}/)?'

    def _any_calls(self, use: ToolUse) -> str:
        """Return one call, or several where the answer may have them."""
        assert self._calls is not None
        form, write = self._calls, self._literals.write
        beginning = "" if form.at_start else fixed_text(form.beginning, self._literals)
        call = f"{beginning} {self._one_call(use)}"
        several = use.parallel and use.name is None and not form.at_most_one
        more = f"({write(form.separator)} {call})*" if several else ""
        return f"({write(form.before)} {call} {more} {write(form.after)})"

    def _one_call(self, use: ToolUse) -> str:
        """Return the name of the rule of a call without its beginning, and write the rules."""
        assert self._calls is not None
        if self._calls.quote is not None:
            self._rules += any_rules(self._calls.quote, self._literals)
        # A tool that isn't strict may be called with any arguments, unless a call is demanded.
        held = use.callable if use.choice == "required" else use.strict
        names = [f"call_{number}" for number in range(len(use.callable))]
        for name, tool in zip(names, use.callable, strict=True):
            schema = use.schema(tool) if tool in held else None
            self._rules += call_rules(name, self._calls, tool["function"]["name"], schema, self._literals)
        self._rules.append(f"call: {' | '.join(names)}")
        return "call"

    def _final_header(self) -> str:
        """Return the header of text for the user."""
        if self._channels is None:
            return ""
        write, channels = self._literals.write, self._channels
        kind = "" if channels.type is None else f'(" "? {write(channels.type)} "json")?'
        return f"{write(channels.channel + channels.final)} {kind} {write(channels.body)}"

    def _thoughts(self, reasoning: ReasoningMarks, inside: bool) -> str:
        """Return the reasoning, which is optional unless the prompt has begun it, and what follows it."""
        write = self._literals.write
        end = write(reasoning.end[0].text)
        lazy = "" if self._literals.begins_with_token(reasoning.end[0].text) else "[lazy]"
        self._rules.append(f"thoughts{lazy}: TEXT {end}")
        after = "SPACE?"
        if self._channels is not None:
            after = write(self._channels.start + self._channels.role)
        if inside:
            return f"thoughts {after}"
        starts = " | ".join(write(mark.text) for mark in reasoning.start)
        return f"(({starts}) thoughts {after})?"

    def _text_without(self, beginnings: list[str]) -> str:
        """Return the terminal of text that begins with none of some texts."""
        if not beginnings:
            return "TEXT"
        self._rules.append(rf"FREE: /(?s:.*)/ & ~/(?s:\s*({'|'.join(map(pattern_of, beginnings))}).*)/")
        return "FREE"
