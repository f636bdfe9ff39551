"""The beginning of an answer that the prompt has already."""

from typing import NamedTuple


class AnswerStart(NamedTuple):
    """The part of an answer that the prompt ends with: the chat template's opening, and the text to continue."""

    # Text that the template adds for the answer.
    opening: str = ""
    # The beginning of the answer proper.
    prefill: str = ""


NO_START = AnswerStart()
