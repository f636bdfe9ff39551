"""The choice of the pictures whose rows are kept, and of the time at which each is encoded."""

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from engine_server.core.encoding.request_pictures import EncoderInputs, RequestPictures, read_inputs
from engine_server.requests.messages import PictureInputs, PictureWanted

# Pictures whose inputs are asked for, or wait to be encoded: one is processed while another is encoded. They are large.
MOST_AWAITED = 2

# Encodes a picture, by digest, to a number of rows on every rank; returns the reason if it can't be done.
Encode = Callable[[str, EncoderInputs, int], str | None]


@dataclass(slots=True)
class PictureCounts:
    """Counts for the statistics."""

    encoded: int = 0
    # Pictures that a request found encoded.
    found: int = 0
    # Of encoding.
    seconds: float = 0.0


@dataclass(slots=True, eq=False)
class Rows:
    """The place of a picture's rows."""

    count: int
    holders: set[RequestPictures] = field(default_factory=set)
    encoded: bool = False


class PictureRows:
    """The pictures whose rows every rank has or is about to have, and the requests that need them.

    A request gets places for all pictures that it needs at once, in the order of the queue, so that no two requests
    wait for each other. It holds them until the tokens in whose place they are have been computed. Other rows stay
    until their place is needed, the least recently used ones the shortest. At most one picture is encoded between two
    steps, since all running requests wait for it.

    capacity: rows of all pictures together; at least as many as a prompt may have. drop: forgets rows on every rank.
    """

    def __init__(self, capacity: int, encode: Encode, drop: Callable[[list[str]], None]) -> None:
        self._capacity = capacity
        self._encode = encode
        self._drop = drop
        # By digest; the least recently used come first.
        self._rows: OrderedDict[str, Rows] = OrderedDict()
        self._may_encode = True
        # An earlier request of this pass over the queue lacks places, so later ones get none.
        self._full = False
        self._passed_over: set[RequestPictures] = set()
        # The requests in the latest step, by the number of their tokens that are computed then.
        self._used: dict[RequestPictures, int] = {}
        self._wanted: list[PictureWanted] = []
        # Since the last call of `take_counts`.
        self._counts = PictureCounts()

    def __bool__(self) -> bool:
        """Return True if prompts may have pictures."""
        return self._capacity > 0

    def begin_step(self) -> None:
        """Begin a pass over the queue, before a step."""
        self._may_encode, self._full = True, False
        used, self._used = self._used, {}
        for pictures, computed in used.items():
            needed = pictures.needed_from(computed)
            for digest in [one for one in pictures.held if one not in needed]:
                self._let_go(pictures, digest)

    def prepare(self, pictures: RequestPictures, start: int) -> bool:
        """Return True if all rows are there that a request's tokens from `start` on need, and hold them.

        Otherwise do what can be done now: take places, ask for the inputs, encode.
        """
        needed = pictures.needed_from(start)
        if not self._hold(pictures, needed):
            return self._pass_over(pictures)
        missing = [digest for digest in needed if not self._rows[digest].encoded]
        for digest in missing:
            self._advance(pictures, digest)
        if all(self._rows[digest].encoded for digest in missing if digest in self._rows):
            return not pictures.failed
        return self._pass_over(pictures)

    def use(self, pictures: RequestPictures, computed: int) -> None:
        """Note that this step computes a request up to its first `computed` tokens.

        After the step it lets go of the rows that it doesn't need any more.
        """
        self._used[pictures] = computed

    def release(self, pictures: RequestPictures) -> None:
        """Let go of all rows of a request, which ends or is computed again later."""
        self._used.pop(pictures, None)
        for digest in list(pictures.held):
            self._let_go(pictures, digest)
        self._passed_over.discard(pictures)

    def receive(self, pictures: RequestPictures, message: PictureInputs) -> None:
        """Take the encoder's inputs for a picture of a request, or the reason why there are none."""
        pictures.asked.discard(message.digest)
        if message.inputs is None:
            pictures.error = message.error
        else:
            pictures.inputs[message.digest] = read_inputs(message.inputs)
        self._wake()

    def clear(self) -> None:
        """Forget all rows, also those that waiting requests hold. No request runs."""
        for rows in self._rows.values():
            for holder in rows.holders:
                holder.held.clear()
        self._drop(list(self._rows))
        self._rows.clear()
        self._wake()

    def take_wanted(self) -> list[PictureWanted]:
        """Return the pictures whose inputs became wanted since the last call."""
        wanted, self._wanted = self._wanted, []
        return wanted

    def take_counts(self) -> PictureCounts:
        """Return the counts since the last call."""
        counts, self._counts = self._counts, PictureCounts()
        return counts

    def _hold(self, pictures: RequestPictures, needed: dict[str, int]) -> bool:
        """Take places for all rows that a request needs. Return False, with none taken, if there are too few."""
        new = {digest: count for digest, count in needed.items() if digest not in self._rows}
        if new and not self._make_room(sum(new.values()), needed):
            self._full = True
            self.release(pictures)
            return False
        for digest, count in new.items():
            self._rows[digest] = Rows(count)
        for digest in needed:
            rows = self._rows[digest]
            self._rows.move_to_end(digest)
            if rows.encoded:
                pictures.inputs.pop(digest, None)
            if digest not in pictures.held:
                self._counts.found += rows.encoded
                rows.holders.add(pictures)
                pictures.held.add(digest)
        return True

    def _make_room(self, count: int, kept: dict[str, int]) -> bool:
        """Drop the least recently used rows that nobody holds, until there is room for `count` more."""
        if self._full:
            return False
        surplus = sum(rows.count for rows in self._rows.values()) + count - self._capacity
        dropped = []
        for digest, rows in self._rows.items():
            if surplus <= 0:
                break
            if not rows.holders and digest not in kept:
                dropped.append(digest)
                surplus -= rows.count
        if surplus > 0:
            return False
        self._forget(dropped)
        return True

    def _advance(self, pictures: RequestPictures, digest: str) -> None:
        """Encode a picture if any request has its inputs and none was encoded before this step; else ask for them."""
        rows, inputs = self._rows[digest], self._inputs_of(digest)
        if inputs is None:
            if not any(digest in one.asked for one in rows.holders) and self._num_awaited() < MOST_AWAITED:
                pictures.asked.add(digest)
                self._wanted.append(PictureWanted(pictures.request_id, digest))
        elif self._may_encode:
            self._may_encode = False
            started = time.perf_counter()
            error = self._encode(digest, inputs.pop(digest), rows.count)
            rows.encoded = error is None
            self._counts.encoded += rows.encoded
            self._counts.seconds += time.perf_counter() - started
            if error is not None:
                for holder in rows.holders:
                    holder.misfit = error
                self._forget([digest])
            self._wake()

    def _num_awaited(self) -> int:
        """Return how many pictures were asked for and are not encoded yet."""
        holders = {holder for rows in self._rows.values() if not rows.encoded for holder in rows.holders}
        return sum(len(one.asked) + len(one.inputs) for one in holders)

    def _inputs_of(self, digest: str) -> dict[str, EncoderInputs] | None:
        """Return the inputs of a request that has those of a picture whose rows it holds."""
        return next((one.inputs for one in self._rows[digest].holders if digest in one.inputs), None)

    def _pass_over(self, pictures: RequestPictures) -> bool:
        """Return False for a request that can't run now; it is looked at again when something may have changed."""
        missing = [digest for digest in pictures.held if not self._rows[digest].encoded]
        can_encode = any(self._inputs_of(digest) is not None for digest in missing)
        pictures.waiting = not (pictures.failed or can_encode)
        if pictures.waiting:
            self._passed_over.add(pictures)
        return False

    def _let_go(self, pictures: RequestPictures, digest: str) -> None:
        pictures.held.discard(digest)
        rows = self._rows[digest]
        rows.holders.discard(pictures)
        if not rows.encoded and not rows.holders:
            del self._rows[digest]
        self._wake()

    def _forget(self, digests: list[str]) -> None:
        for digest in digests:
            for holder in self._rows.pop(digest).holders:
                holder.held.discard(digest)
        if digests:
            self._drop(digests)

    def _wake(self) -> None:
        """Look again at the requests that were passed over."""
        for pictures in self._passed_over:
            pictures.waiting = False
        self._passed_over.clear()


def refuse(digest: str, inputs: EncoderInputs, count: int) -> str:
    return "the model takes no pictures"


# Of an engine whose prompts have none.
NO_PICTURES = PictureRows(0, refuse, lambda digests: None)
