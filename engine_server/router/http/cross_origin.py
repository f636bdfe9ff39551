"""Cross-origin resource sharing: the header lines by which browsers accept answers to pages of other origins."""

from collections.abc import Mapping, Sequence

ANY = b"*"
PREFLIGHT_SECONDS = 600


class CrossOrigin:
    """The origins whose pages may call the router. Credentials are keys in header fields, never cookies."""

    def __init__(self, origins: Sequence[str]) -> None:
        """Allow `origins`, such as https://chat.example; `*` allows all."""
        self._allowed = frozenset(origin.encode() for origin in origins)

    def lines(self, fields: Mapping[bytes, bytes]) -> bytes:
        """Return the lines of an answer to a request with these fields."""
        if ANY in self._allowed:
            return b"Access-Control-Allow-Origin: *\r\nAccess-Control-Expose-Headers: *\r\n"
        origin = fields.get(b"origin")
        if origin not in self._allowed:
            return b"Vary: Origin\r\n"
        return (
            b"Vary: Origin\r\nAccess-Control-Allow-Origin: %b\r\nAccess-Control-Expose-Headers: *\r\n"
            % origin
        )

    def preflight_lines(self, fields: Mapping[bytes, bytes], methods: bytes) -> list[bytes]:
        """Return the further lines of an answer to a preflight for a path that takes `methods`."""
        lines = [
            b"Access-Control-Allow-Methods: %b\r\n" % methods,
            b"Access-Control-Max-Age: %d\r\n" % PREFLIGHT_SECONDS,
        ]
        if requested := fields.get(b"access-control-request-headers"):
            lines.append(b"Access-Control-Allow-Headers: %b\r\n" % requested)
        return lines
