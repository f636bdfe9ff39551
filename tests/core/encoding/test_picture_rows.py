"""Which pictures' rows are kept, and when each picture is encoded."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from engine_server.core.encoding.picture_rows import MOST_AWAITED, PictureRows
from engine_server.core.encoding.request_pictures import EncoderInputs, RequestPictures
from engine_server.core.span import Span
from engine_server.requests.messages import PictureInputs, RawTensor

ROWS = 4
PIXELS = {"pixel_values": torch.zeros(1)}


class Device:
    """Ranks that keep the digests of what they have encoded."""

    def __init__(self) -> None:
        self.digests: set[str] = set()
        self.log: list[str] = []
        self.error: str | None = None

    def encode(self, digest: str, inputs: EncoderInputs, count: int) -> str | None:
        self.log.append(digest)
        if self.error is None:
            self.digests.add(digest)
        return self.error

    def drop(self, digests: list[str]) -> None:
        self.digests.difference_update(digests)


def rows_for(device: Device, pictures: int) -> PictureRows:
    return PictureRows(pictures * ROWS, device.encode, device.drop)


def request(name: str, digests: str, new: str = "") -> RequestPictures:
    """Return a request with a picture for each letter, four tokens each; `new` came with their inputs."""
    spans = [Span(index * ROWS, ROWS, digest) for index, digest in enumerate(digests)]
    return RequestPictures(name, spans, dict.fromkeys(new, PIXELS))


def passes(rows: PictureRows, *requests: RequestPictures, start: int = 0) -> list[bool]:
    """Let requests prepare in their order, before a step."""
    rows.begin_step()
    return [rows.prepare(one, start) for one in requests]


def answer(rows: PictureRows, *requests: RequestPictures) -> list[str]:
    """Send what is wanted; return the digests."""
    wanted = rows.take_wanted()
    by_id = {one.request_id: one for one in requests}
    for one in wanted:
        inputs = {"pixel_values": RawTensor.of(PIXELS["pixel_values"])}
        rows.receive(by_id[one.request_id], PictureInputs(one.request_id, one.digest, inputs))
    return [one.digest for one in wanted]


def test_one_picture_is_encoded_before_each_step() -> None:
    device = Device()
    rows, first = rows_for(device, 3), request("1", "abc", "abc")
    assert [passes(rows, first) for _ in range(3)] == [[False], [False], [True]]
    assert device.log == ["a", "b", "c"]
    assert not first.inputs


def test_a_request_asks_once_for_what_is_lacking_and_sleeps_until_it_arrives() -> None:
    device = Device()
    rows, first, second = rows_for(device, 2), request("1", "a"), request("2", "a")
    passes(rows, first, second)
    passes(rows, first, second)
    assert first.waiting and second.waiting
    assert answer(rows, first, second) == ["a"]
    assert not first.waiting and not second.waiting
    assert passes(rows, first, second) == [True, True]
    assert device.log == ["a"]


def test_another_request_asks_when_the_one_that_asked_has_ended() -> None:
    rows, first, second = rows_for(Device(), 2), request("1", "a"), request("2", "a")
    passes(rows, first, second)
    rows.take_wanted()
    rows.release(first)
    passes(rows, second)
    assert [one.request_id for one in rows.take_wanted()] == ["2"]


def test_pictures_before_the_first_computed_token_are_not_wanted() -> None:
    device = Device()
    rows, first = rows_for(device, 2), request("1", "ab")
    passes(rows, first, start=ROWS)
    assert answer(rows, first) == ["b"]
    rows.release(first)
    assert passes(rows, request("2", "ab"), start=2 * ROWS) == [True]
    assert device.log == []


def test_rows_are_found_until_their_place_is_needed() -> None:
    device = Device()
    rows = rows_for(device, 2)
    for name, digest in (("1", "a"), ("2", "b"), ("3", "a"), ("4", "c")):
        one = request(name, digest, digest)
        passes(rows, one)
        rows.use(one, ROWS)
    assert device.digests == {"a", "c"}  # b was used least recently
    assert device.log == ["a", "b", "c"]
    assert rows.take_counts().found == 1


def test_a_request_that_lacks_places_takes_none_and_those_after_it_get_none() -> None:
    device = Device()
    rows = rows_for(device, 2)
    running = request("1", "a", "a")
    assert passes(rows, running) == [True]
    large, small = request("2", "bc", "bc"), request("3", "d", "d")
    assert passes(rows, large, small) == [False, False]
    assert not large.held and not small.held
    rows.use(running, ROWS)
    for _ in range(2):
        passes(rows, large, small)
    assert device.digests == {"b", "c"}
    assert passes(rows, large) == [True]


def test_a_picture_that_cannot_be_encoded_fails_its_requests_alone() -> None:
    device = Device()
    rows, bad, good = rows_for(device, 2), request("1", "a", "a"), request("2", "b", "b")
    device.error = "the model can't take it"
    passes(rows, bad)
    device.error = None
    assert bad.misfit == "the model can't take it" and not bad.waiting
    rows.release(bad)
    assert passes(rows, good) == [True]
    assert not good.failed


def test_an_answer_without_inputs_fails_the_request() -> None:
    rows, first = rows_for(Device(), 1), request("1", "a")
    passes(rows, first)
    (wanted,) = rows.take_wanted()
    rows.receive(first, PictureInputs(wanted.request_id, wanted.digest, error="gone"))
    assert first.error == "gone" and not first.waiting


def test_cleared_rows_are_encoded_again() -> None:
    device = Device()
    rows, first = rows_for(device, 1), request("1", "a", "a")
    passes(rows, first)
    rows.clear()
    assert device.digests == set()
    passes(rows, first)
    assert answer(rows, first) == ["a"]
    assert passes(rows, first) == [True]


@given(st.lists(st.text("abcd", min_size=1, max_size=3), min_size=1, max_size=6), st.data())
def test_every_request_gets_its_rows_and_no_more_are_kept_than_fit(
    digests: list[str], data: st.DataObject
) -> None:
    device = Device()
    rows = rows_for(device, 3)
    queue = [request(str(index), some) for index, some in enumerate(digests)]
    running: list[RequestPictures] = []
    for _ in range(60):
        rows.begin_step()
        for one in [one for one in queue if not one.waiting]:
            if rows.prepare(one, 0):
                assert device.digests >= set(one.needed_from(0))
                queue.remove(one)
                running.append(one)
        assert len(device.digests) <= 3
        assert all(device.digests >= set(one.held) for one in running)
        answer(rows, *queue)
        if running and data.draw(st.booleans()):
            rows.release(running.pop(0))
        if not queue:
            break
    for _ in range(20):
        while running:
            rows.release(running.pop())
        rows.begin_step()
        for one in list(queue):
            if rows.prepare(one, 0):
                queue.remove(one)
                running.append(one)
        answer(rows, *queue)
    assert not queue


def test_inputs_of_few_pictures_are_asked_for_at_a_time() -> None:
    device = Device()
    rows, first = rows_for(device, 6), request("1", "abcdef")
    asked = []
    while not passes(rows, first)[0]:
        asked.append(len(answer(rows, first)))
        assert len(first.inputs) <= MOST_AWAITED
    assert sum(asked) == 6 and max(asked) <= MOST_AWAITED
    assert device.log == list("abcdef")
