"""Errors of grammars."""

import re

from engine_server.contract.base.quoting import shorten

# The library's excerpt of the grammar, with line numbers, and its state.
EXCERPT = re.compile(r"\n\s*\d+ \| |\n?<state>| ?<non-verbose/>")


class GrammarError(ValueError):
    """A grammar that can't be used. The message is one line for the client."""

    def __init__(self, message: str) -> None:
        if message.startswith("NoExtension"):  # the library's name for an empty set of tokens
            message = "no text matches the grammar"
        super().__init__(shorten(" ".join(EXCERPT.split(message)[0].split())))
