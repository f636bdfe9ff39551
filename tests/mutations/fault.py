"""A fault: an edit of one file of the sources that tests must notice."""

from typing import NamedTuple


class Fault(NamedTuple):
    """`old`, which occurs once in `file`, is replaced by `new`; `tests` are the files of which one must fail."""

    # The effect on users.
    effect: str
    # Relative to the checkout, as the tests are.
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
