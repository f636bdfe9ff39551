"""What limits the tokens of a request."""

from typing import NamedTuple, Self

from engine_server.structured.matcher import Matcher
from engine_server.structured.reasoning_position import ReasoningPosition
from engine_server.structured.token_rules import TokenRules


class Limits(NamedTuple):
    """At least one of these."""

    # What its parameters allow.
    rules: TokenRules | None = None
    # The position in the grammar of the output.
    matcher: Matcher | None = None
    # The position in the reasoning of the output, if that is limited or a grammar begins where it ends.
    reasoning: ReasoningPosition | None = None

    @property
    def ready(self) -> bool:
        """False while a grammar is compiled in a thread."""
        return self.matcher is None or self.matcher.ready

    def fork(self) -> Self:
        """Return the limits after a draft, which move on alone."""
        return self._replace(
            matcher=self.matcher and self.matcher.fork(), reasoning=self.reasoning and self.reasoning.fork()
        )
