"""The events of one choice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from engine_server.contract.wire.errors import ErrorCode
from engine_server.requests.outputs import CompletionOutput
from engine_server.server.generation.events import ChoiceDelta, Finish, Part, Prompt, TextKind, TokenCounts
from engine_server.server.http.errors import ApiError

if TYPE_CHECKING:
    from engine_server.requests.logprobs import SampleLogprobs
    from engine_server.server.generation.answer_parser import AnswerParser


class ChoiceReader:
    """Turns the outputs of one choice into events."""

    def __init__(
        self, choice: int, parser: AnswerParser, prompt: Prompt, *, prompt_only: bool, has_text: bool
    ) -> None:
        """prompt_only: report the prompt and nothing else. has_text: the engine's outputs have text."""
        self.choice = choice
        self.parser = parser
        self._prompt_only = prompt_only
        self._has_text = has_text
        # None once it is reported.
        self._prompt: Prompt | None = prompt
        # Tokens of outputs without an event.
        self.held: list[int] = []

    @property
    def plain_kind(self) -> TextKind | None:
        """The kind of part to which plain text is added next; None before the first event, or if the text decides."""
        return self.parser.plain_kind if self._prompt is None and self._has_text else None

    def count(self, output: CompletionOutput) -> int:
        """Return how many tokens an output adds to the completion."""
        return 0 if self._prompt_only else len(output.token_ids)

    def count_reasoning(self, token_ids: Sequence[int]) -> int:
        """Return how many of the next tokens belong to the reasoning."""
        return 0 if self._prompt_only else self.parser.count_reasoning(token_ids)

    def replay(self, token_ids: list[int], texts: list[str], counts: TokenCounts) -> list[ChoiceDelta]:
        """Return the events of resumed tokens, of which each made a text visible; at least one event."""
        outputs = [
            CompletionOutput(0, text, [token_id]) for token_id, text in zip(token_ids, texts, strict=True)
        ]
        deltas = [delta for output in outputs if (delta := self.read(output, counts))]
        if self.held or not deltas:
            deltas.append(self._delta([], None, None, counts))
        return deltas

    def read(self, output: CompletionOutput, counts: TokenCounts) -> ChoiceDelta | None:
        """Return the event for the choice's next output; None if there is nothing to report yet."""
        finish = Finish(output.finish_reason, output.stop_reason) if output.finish_reason else None
        if self._prompt_only:
            return self._delta([], None, finish, counts)
        parts = self.parser.feed(output.text)
        if finish is not None:
            parts = parts + self.parser.end()
        self.held += output.token_ids
        if self._has_text and not parts and not output.logprobs and finish is None:
            return None
        return self._delta(parts, output.logprobs, finish, counts)

    def _delta(
        self, parts: list[Part], logprobs: SampleLogprobs | None, finish: Finish | None, counts: TokenCounts
    ) -> ChoiceDelta:
        token_ids, self.held = self.held, []
        prompt, self._prompt = self._prompt, None
        return ChoiceDelta(self.choice, parts, token_ids, logprobs, finish, counts, prompt)


def raise_if_failed(output: CompletionOutput) -> None:
    """Raise ApiError for an output that ended without an answer."""
    if output.finish_reason == "error":
        raise ApiError(ErrorCode.REQUEST_FAILED, f"the request failed: {output.stop_reason}")
    if output.finish_reason == "refused":
        raise ApiError(ErrorCode.INVALID_VALUE, str(output.stop_reason))
    if output.finish_reason == "abort":
        message = "the request was aborted by the server"
        raise ApiError(ErrorCode.ABORTED, message, retry_after=1)
