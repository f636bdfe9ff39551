"""Events of a generation, in the order in which they happen; every API renders the same ones."""

import msgspec

from engine_server.requests.logprobs import PromptLogprobs, SampleLogprobs


class Text(msgspec.Struct, frozen=True):
    """New text of the answer proper."""

    text: str


class Reasoning(msgspec.Struct, frozen=True):
    """New text of the reasoning that precedes the answer."""

    text: str


class ToolCall(msgspec.Struct, frozen=True):
    """A fragment of a tool call. A call's first fragment has its id and name; its arguments' fragments join to JSON."""

    # Counts the calls of the choice from 0.
    index: int
    id: str | None
    name: str | None
    arguments: str


Part = Text | Reasoning | ToolCall
# The kinds of parts that are text alone.
TextKind = type[Text] | type[Reasoning]


class Finish(msgspec.Struct, frozen=True):
    """The end of a choice."""

    reason: str
    # The stop string or the stop token's id that ended it.
    stop: int | str | None


class TokenCounts(msgspec.Struct, frozen=True):
    """Numbers of tokens of all prompts and choices so far."""

    prompt_tokens: int
    completion_tokens: int
    # Prompt tokens found in the prefix cache; None until it is known.
    cached_tokens: int | None = None
    # Completion tokens that belong to the reasoning.
    reasoning_tokens: int = 0


class Prompt(msgspec.Struct, frozen=True):
    """The prompt of a choice."""

    # None for a prompt that was given as token ids, or that was cut.
    text: str | None
    token_ids: list[int]
    # None unless the request asks for them.
    logprobs: PromptLogprobs | None


class ChoiceDelta(msgspec.Struct, frozen=True):
    """New parts of a choice, or its end, or both; the whole choice where the answer is not streamed."""

    choice: int
    parts: list[Part]
    # The tokens since the choice's previous event, including those whose text is still held back.
    token_ids: list[int]
    # One entry for each new token; None unless the request asks for log-probabilities.
    logprobs: SampleLogprobs | None
    # None while the choice goes on.
    finish: Finish | None
    counts: TokenCounts
    # Set in the choice's first event.
    prompt: Prompt | None = None

    @property
    def text(self) -> str:
        """The new text of the answer proper."""
        text = ""
        for part in self.parts:  # a loop, since `join` would start a generator for every token
            if isinstance(part, Text):
                text += part.text
        return text


class Resumed(msgspec.Struct, frozen=True):
    """The part of the answer that another engine has sent already; the first event of a continued stream."""

    # One for each resumed token that was reported with an event, without the end of the choice.
    deltas: list[ChoiceDelta]
    # Number of events that the client has received.
    num_events: int


class GenerationFinished(msgspec.Struct, frozen=True):
    """The end of the last choice; no event follows."""

    counts: TokenCounts


GenerationEvent = ChoiceDelta | GenerationFinished
