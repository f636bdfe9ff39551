"""TLS of the server's sockets, with certificates that are read again when their files change."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import NamedTuple


class TlsFiles(NamedTuple):
    """The files of a TLS server, and its treatment of clients' certificates."""

    certificate: Path
    # None: the key is in the certificate's file.
    key: Path | None = None
    # The authorities of clients' certificates.
    authorities: Path | None = None
    client_certificates: ssl.VerifyMode = ssl.CERT_NONE

    @property
    def paths(self) -> list[Path]:
        return [path for path in (self.certificate, self.key, self.authorities) if path is not None]

    def context(self) -> ssl.SSLContext:
        """Return a context with the files' content. Raises ValueError."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(self.certificate, self.key)
            if self.authorities is not None:
                context.load_verify_locations(self.authorities)
        except OSError as error:  # ssl.SSLError is one
            files = ", ".join(str(path) for path in self.paths)
            raise ValueError(f"TLS can't use {files}: {error.strerror or error}") from error
        context.verify_mode = self.client_certificates
        return context


class Tls:
    """The TLS context of a server. After `reload`, new connections use the files' new content."""

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._current = files.context()
        # The context that the listener keeps; each handshake goes on with the current one.
        self.context = files.context()
        self.context.sni_callback = self._select

    def reload(self) -> None:
        """Read the files again. Raises ValueError, and changes nothing, if they can't be used."""
        self._current = self._files.context()

    def _select(self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        connection.context = self._current
