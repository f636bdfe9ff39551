"""Errors of grammars."""

import re

# Maximum number of characters of a message, which quotes the client's input.
MESSAGE_CHARACTERS = 200
# The library's excerpt of the grammar, with line numbers, and its state.
EXCERPT = re.compile(r"\n\s*\d+ \| |\n?<state>| ?<non-verbose/>")


class GrammarError(ValueError):
    """A grammar that can't be used. The message is one line for the client."""

    def __init__(self, message: str) -> None:
        if message.startswith("NoExtension"):  # the library's name for an empty set of tokens
            message = "no text matches the grammar"
        line = " ".join(EXCERPT.split(message)[0].split())
        super().__init__(line if len(line) <= MESSAGE_CHARACTERS else line[: MESSAGE_CHARACTERS - 3] + "...")
