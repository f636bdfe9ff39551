import sys

from engine_server.shared.pipelining import SLICE_BYTES, Unparsed


def test_bytes_that_were_taken_are_not_kept():
    unparsed, data = Unparsed(), bytes(SLICE_BYTES * 3)
    references = sys.getrefcount(data)
    unparsed.add(data)
    while unparsed:
        unparsed.take()
    assert sys.getrefcount(data) == references
