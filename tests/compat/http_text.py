"""HTTP messages as bytes, with their whole bodies."""

from typing import NamedTuple


class HttpMessage(NamedTuple):
    """A request or an answer."""

    first_line: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes

    @property
    def status(self) -> int:
        """The status of an answer."""
        return int(self.first_line.split()[1])

    def encode(self) -> bytes:
        lines = b"".join(b"%b: %b\r\n" % header for header in self.headers)
        return b"%b\r\n%b\r\n%b" % (self.first_line, lines, self.body)


def parse_message(content: bytes) -> HttpMessage:
    head, _, body = content.partition(b"\r\n\r\n")
    first_line, *lines = head.split(b"\r\n")
    pairs = [line.partition(b": ") for line in lines]
    return HttpMessage(first_line, [(name, value) for name, _, value in pairs], body)
