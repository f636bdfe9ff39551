"""Log output through a pipe whose reader is slow, stopped or gone."""

import os
import subprocess
import sys

import pytest
from waiting import until

from engine_server.router.line_writer import LineWriter


@pytest.fixture
def pipe():
    reader, writer = os.pipe()
    yield reader, writer
    os.close(reader)
    os.close(writer)


def test_writes_lines_in_order(pipe):
    reader, writer = pipe
    output = LineWriter(writer)
    for number in range(100):
        output.write(f"line {number}\n")
    output.close(10)
    assert os.read(reader, 1 << 16).decode().splitlines() == [f"line {number}" for number in range(100)]
    assert output.dropped == 0


def test_drops_and_counts_lines_instead_of_blocking_when_nobody_reads(pipe):
    reader, writer = pipe
    output = LineWriter(writer, max_waiting=1 << 20)
    sent = 300_000
    for _ in range(sent):
        output.write("0123456789\n")  # 3.3 MB, more than the pipe and the limit can hold
    assert 0 < output.dropped < sent
    expected = b"0123456789\n" * (sent - output.dropped)
    received = bytearray()
    while len(received) < len(expected):
        received += os.read(reader, 1 << 16)
    assert received == expected

    def accepts_again() -> bool:
        before = output.dropped
        output.write("after\n")
        return output.dropped == before

    until(accepts_again)
    assert os.read(reader, 100) == b"after\n"


def test_close_does_not_wait_for_a_reader_that_does_not_read(pipe):
    output = LineWriter(pipe[1])
    output.write("x" * (1 << 20) + "\n")
    output.close(0.01)


def test_process_ends_although_nobody_reads_its_log():
    code = (
        "import logging; from engine_server.router.line_writer import LineWriter;"
        "logging.basicConfig(stream=LineWriter(2));"
        "[logging.error('x' * 1000) for _ in range(1000)]"
    )
    with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE) as process:
        assert process.wait(60) == 0


def test_ignores_a_reader_that_is_gone():
    reader, writer = os.pipe()
    os.close(reader)
    output = LineWriter(writer)
    output.write("lost\n")
    output.close(10)
    output.write("lost\n")
    os.close(writer)
