"""The requests of a load: their parameters and their random texts."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

# Short common words, one token each in most vocabularies with the space before it.
WORDS = (  # noqa: SIM905
    "time year people way day man thing woman life child world school state family student group country problem "
    "hand part place case week company system program question work government number night point home water room "
    "mother area money story fact month lot right study book eye job word business issue side kind head house "
    "service friend father power hour game line end member law car city name president team minute idea body "
    "information back parent face others level office door health person art war history party result change "
    "morning reason research girl guy moment air teacher force education"
).split()


@dataclass(frozen=True, slots=True)
class Load:
    """The parameters of every request."""

    base_url: str
    model: str
    input_tokens: int
    output_tokens: int
    seed: int
    # A name in `apis.APIS`.
    api: str = "completions"
    # False for servers that refuse the field: their answers end where the model ends them.
    ignore_eos: bool = True
    # Requests of a conversation; each carries the texts and answers before it.
    turns: int = 1
    # What each turn after the first adds beside the previous answer.
    turn_tokens: int = 128


@dataclass(frozen=True, slots=True)
class Words:
    """The numbers of words that the server tokenizes to `input_tokens` and to `turn_tokens` tokens."""

    first: int
    later: int


def conversations(load: Load, words: Words, label: str) -> Iterator[list[str]]:
    """Yield the texts of a conversation's turns without end, by the load's seed and the row's label."""
    source = random.Random(f"{load.seed} {label}")
    while True:
        yield [text(source, words.first), *(text(source, words.later) for _ in range(1, load.turns))]


def text(source: random.Random, words: int) -> str:
    return " ".join(source.choices(WORDS, k=words))
