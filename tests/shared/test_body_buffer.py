"""Bodies that arrive in pieces."""

from mmap import mmap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_server.shared import body_buffer
from engine_server.shared.body_buffer import BodyBuffer, contiguous

MOST = 100_000


@pytest.fixture(autouse=True)
def moved_bytes(monkeypatch):
    monkeypatch.setattr(body_buffer, "MOVED_BYTES", 5000)


@given(st.lists(st.binary(max_size=3000), max_size=30))
def test_a_body_is_its_pieces(pieces):
    buffer = BodyBuffer(MOST)
    for piece in pieces:
        buffer.add(piece)
    whole = b"".join(pieces)

    assert len(buffer) == len(whole)
    assert contiguous(buffer.whole()) == whole


def test_a_large_body_is_mapped_and_has_its_own_size():
    buffer = BodyBuffer(MOST)
    for number in range(10):
        buffer.add(bytes([number]) * 1000)
    body = buffer.whole()

    assert isinstance(body, mmap) and len(body) == 10_000
    assert memoryview(body)[-1] == 9 and body.find(b"\x05", 0) == 5000
    assert contiguous(body) == b"".join(bytes([number]) * 1000 for number in range(10))


def test_a_body_may_have_as_many_bytes_as_its_limit():
    buffer = BodyBuffer(MOST)
    buffer.add(b"a" * MOST)

    assert len(buffer.whole()) == MOST
