"""The declaration of a source of models: its grammar, its names for people, and what a Secret gives it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Self


class SecretVariable(NamedTuple):
    """A variable of the process that fetches, with the key of the user's Secret that it is read from."""

    name: str
    key: str
    is_required: bool = False


@dataclass(frozen=True, slots=True)
class Source:
    """A source, by the parts of its URI. Each kind is a frozen dataclass."""

    # The URIs, in the syntax that Python and the regular expressions of CEL have in common. The names of groups are
    # those of no other source.
    PATTERN: ClassVar[str]
    # As people write them: of models and of adapters.
    MODEL_FORMS: ClassVar[str]
    ADAPTER_FORMS: ClassVar[str]
    # The scheme, and what is expected after it; empty without one.
    SCHEME: ClassVar[str] = ""
    EXPECTED: ClassVar[str] = ""
    # The beginnings of URIs whose models are fetched, in the same syntax; empty if a model is there already.
    FETCHED: ClassVar[str] = ""
    # Those that a Secret with credentials may give.
    SECRET: ClassVar[tuple[SecretVariable, ...]] = ()

    @classmethod
    def of(cls, found: Mapping[str, str | None]) -> Self | None:
        """Return the source whose groups of PATTERN were found; None if it is another one."""
        raise NotImplementedError

    @property
    def name(self) -> str:
        """A short name of the model."""
        raise NotImplementedError
