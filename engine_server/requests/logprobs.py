"""Log-probabilities of tokens in outputs."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, overload


class Logprob(NamedTuple):
    """A token's log-probability under the model, or another number by EngineArgs.logprobs_mode.

    rank: 1 is the likeliest token. decoded_token: what the token adds to the
    text; None without detokenization; "" if the token is part of a character.
    """

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


# The sampled token first, then the likeliest ones.
TokenLogprobs = dict[int, Logprob]


class FlatLogprobs(Sequence[TokenLogprobs]):
    """Log-probabilities of many positions in six lists, which the garbage collector traverses at constant cost.

    It reads like a list with a dict for each position; a position that was None is empty.
    Position i is the range from start_indices[i] to end_indices[i] of the other four lists.
    """

    __slots__ = ("decoded_tokens", "end_indices", "logprobs", "ranks", "start_indices", "token_ids")

    def __init__(self, positions: Iterable[TokenLogprobs | None] = ()) -> None:
        self.start_indices: list[int] = []
        self.end_indices: list[int] = []
        self.token_ids: list[int] = []
        self.logprobs: list[float] = []
        self.ranks: list[int | None] = []
        self.decoded_tokens: list[str | None] = []
        self.extend(positions)

    def append(self, position: TokenLogprobs | None) -> None:
        """Add one position."""
        self.start_indices.append(len(self.token_ids))
        for token_id, (logprob, rank, decoded_token) in (position or {}).items():
            self.token_ids.append(token_id)
            self.logprobs.append(logprob)
            self.ranks.append(rank)
            self.decoded_tokens.append(decoded_token)
        self.end_indices.append(len(self.token_ids))

    def extend(self, positions: Iterable[TokenLogprobs | None]) -> None:
        """Add several positions."""
        for position in positions:
            self.append(position)

    @overload
    def __getitem__(self, index: int) -> TokenLogprobs: ...

    @overload
    def __getitem__(self, index: slice) -> "FlatLogprobs": ...

    def __getitem__(self, index: int | slice) -> "TokenLogprobs | FlatLogprobs":
        if isinstance(index, slice):
            return self._slice(range(len(self))[index])
        entries = range(self.start_indices[index], self.end_indices[index])
        return {
            self.token_ids[entry]: Logprob(
                self.logprobs[entry], self.ranks[entry], self.decoded_tokens[entry]
            )
            for entry in entries
        }

    def _slice(self, positions: range) -> "FlatLogprobs":
        sliced = FlatLogprobs()
        for position in positions:
            entries = slice(self.start_indices[position], self.end_indices[position])
            sliced.start_indices.append(len(sliced.token_ids))
            sliced.token_ids += self.token_ids[entries]
            sliced.logprobs += self.logprobs[entries]
            sliced.ranks += self.ranks[entries]
            sliced.decoded_tokens += self.decoded_tokens[entries]
            sliced.end_indices.append(len(sliced.token_ids))
        return sliced

    def __len__(self) -> int:
        return len(self.start_indices)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FlatLogprobs) and list(self) == list(other)

    def __add__(self, later: "Sequence[TokenLogprobs]") -> "FlatLogprobs":
        joined = FlatLogprobs(self)
        joined.extend(later)
        return joined

    def __repr__(self) -> str:
        return f"FlatLogprobs({list(self)!r})"


SampleLogprobs = list[TokenLogprobs] | FlatLogprobs
# The first position, which has no log-probability, is None in the list and empty in FlatLogprobs.
PromptLogprobs = list[TokenLogprobs | None] | FlatLogprobs
