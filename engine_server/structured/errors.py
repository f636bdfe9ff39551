"""Errors of grammars."""

# Maximum number of characters of a message, which quotes the client's input.
MESSAGE_CHARACTERS = 200


class GrammarError(ValueError):
    """A grammar that can't be used. The message is one line for the client."""

    def __init__(self, message: str) -> None:
        first = " ".join(message.partition("\n<state>")[0].split())
        super().__init__(first if len(first) <= MESSAGE_CHARACTERS else first[: MESSAGE_CHARACTERS - 3] + "...")
