"""The form of a call as the model writes it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CallForm:
    """A call as the model writes it, with NAME and ARGUMENTS in the places of both."""

    text: str
    before: str = ""
    separator: str = ""
    after: str = ""
    # The form of one argument, with KEY and VALUE, where arguments are not JSON.
    tag: str | None = None
    at_most_one: bool = False
