"""The server's own flags, with vLLM's names where vLLM has them. Each class is a group of `--help`."""

from __future__ import annotations

import argparse
import json
import ssl
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal, Self

from engine_server.contract.base.listening import EVERY_ADDRESS
from engine_server.contract.base.logs import FORMAT_HELP, LEVEL_HELP, Format, Level
from engine_server.contract.cluster.drain import ANNOUNCE_SECONDS, DEFAULT_DRAIN_TIMEOUT_SECONDS
from engine_server.contract.cluster.labels import ADMIN_PORT, ENGINE_PORT
from engine_server.engine.arguments.fields import argument
from engine_server.engine.arguments.flags import parse_size
from engine_server.server.http.tls import TlsFiles
from engine_server.shared.idle_timeout import DEFAULT_IDLE_TIMEOUT_SECONDS


def texts(text: str) -> list[str]:
    """Return a list of strings in JSON, or the one string that is not JSON."""
    try:
        value = json.loads(text)
    except ValueError:
        return [text]
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise argparse.ArgumentTypeError(
            f'{text!r} is no list of strings; an example is ["https://a.example"]'
        )
    return value


def paths(text: str) -> list[str]:
    """Return the paths of a list in JSON or with commas."""
    items = texts(text) if text.startswith("[") else text.split(",")
    found = [path.strip() for path in items if path.strip()]
    if wrong := [path for path in found if not path.startswith("/")]:
        raise argparse.ArgumentTypeError(f"{wrong[0]!r} is no path; paths begin with /")
    return found


@dataclass(kw_only=True)
class AddressArguments:
    """Address."""

    host: str = argument(EVERY_ADDRESS, "address to listen on; :: is all of IPv4 and IPv6")
    port: int = argument(ENGINE_PORT, "port; 0: any free one")
    uds: Path | None = argument(None, "Unix socket to listen on, in place of host and port", metavar="PATH")
    allow_host: list[str] | None = argument(
        None,
        "a further name by which a server on a loopback address may be called; may be repeated (without: localhost, "
        "*.localhost, addresses and the machine's name)",
        metavar="NAME",
    )
    root_path: str = argument("", "path prefix under which a proxy publishes the server", metavar="PREFIX")


@dataclass(kw_only=True)
class LimitArguments:
    """Limits and shutdown."""

    max_body_bytes: int = argument(
        32 << 20, "limit of a request's body (default: 32MiB)", type=parse_size, metavar="SIZE"
    )
    drain_timeout: float = argument(
        float(DEFAULT_DRAIN_TIMEOUT_SECONDS),
        "time for requests in flight to finish after SIGTERM",
        metavar="SECONDS",
    )
    drain_grace: float = argument(
        ANNOUNCE_SECONDS,
        "time after SIGTERM for which new requests are still accepted, until routers have seen that the server is "
        "not ready; a part of the drain timeout",
        metavar="SECONDS",
    )
    idle_timeout: int = argument(
        DEFAULT_IDLE_TIMEOUT_SECONDS,
        "time without a request after which a connection is closed; longer than load balancers keep theirs",
        metavar="SECONDS",
    )
    enable_server_load_tracking: bool = argument(
        False, "accepted for vLLM's sake: /load always reports the number of requests in flight"
    )


@dataclass(kw_only=True)
class KeyArguments:
    """API keys."""

    api_key: list[str] | None = argument(
        None,
        "a key that requests must carry, as `Authorization: Bearer KEY` or `x-api-key: KEY`; may be repeated. "
        "Prefer a file or FAIRLEAD_API_KEY: arguments are visible in a pod's spec",
        secret=True,
        metavar="KEY",
    )
    api_key_file: Path | None = argument(
        None,
        "a file with one key per line, or its hash as `sha256:HEX`, read again when it changes",
        metavar="FILE",
    )
    api_key_for_metrics: bool = argument(
        False, "require a key for /metrics too, which is public by default, as Prometheus sends none"
    )


@dataclass(kw_only=True)
class AdminArguments:
    """Admin API."""

    enable_admin: bool = argument(
        False, "serve sleep, pause, cache reset and profiles, on a port of their own"
    )
    admin_host: str = argument("127.0.0.1", "address of the admin API")
    admin_port: int = argument(ADMIN_PORT, "port of the admin API; 0: any free one", metavar="PORT")
    admin_key_file: Path | None = argument(
        None,
        "a file with the admin API's keys as in --api-key-file; or the environment variable FAIRLEAD_ADMIN_KEY. "
        "Without a key the address must be a loopback address",
        metavar="FILE",
    )


@dataclass(kw_only=True)
class TlsArguments:
    """TLS. The files are read again when they change."""

    ssl_certfile: Path | None = argument(None, "certificate chain; serve HTTPS", metavar="FILE")
    ssl_keyfile: Path | None = argument(
        None, "private key (default: in the certificate's file)", metavar="FILE"
    )
    ssl_ca_certs: Path | None = argument(None, "authorities of clients' certificates", metavar="FILE")
    ssl_cert_reqs: Literal[0, 1, 2] = argument(
        0, "clients' certificates: 0: not asked for; 1: checked if there is one; 2: required"
    )


@dataclass(kw_only=True)
class CorsArguments:
    """CORS."""

    allowed_origins: list[str] | None = argument(
        None, 'origins of web pages that may call the server, in JSON; ["*"] for all (default: those of this machine)',
        action="store", nargs=None, type=texts, metavar="LIST",
    )  # fmt: skip
    allowed_methods: list[str] = argument(
        ["*"], 'methods, in JSON (default: ["*"])', action="store", nargs=None, type=texts, metavar="LIST"
    )
    allowed_headers: list[str] = argument(
        ["*"], 'request headers, in JSON (default: ["*"])', action="store", nargs=None, type=texts, metavar="LIST"
    )  # fmt: skip
    allow_credentials: bool = argument(False, "allow cookies and HTTP authentication")


@dataclass(kw_only=True)
class LogArguments:
    """Logs and documentation."""

    log_level: Level | None = argument(None, LEVEL_HELP)
    log_format: Format | None = argument(None, FORMAT_HELP)
    access_log_format: Literal["text", "json"] = argument("text", "lines of text, or a JSON object per line")
    disable_access_log_for_endpoints: list[str] = argument(
        [], "paths that are not logged, with commas between them; /health, /ready and /metrics never are",
        action="store", nargs=None, type=paths, metavar="PATHS",
    )  # fmt: skip
    disable_fastapi_docs: bool = argument(False, "no /openapi.json and /docs")
    explain_template: bool = argument(
        False,
        "print the format of the model's answers and why it is used, as a file for --response-template, and end; no "
        "weights are read",
    )


@dataclass(kw_only=True)
class ServerArgs(
    AddressArguments,
    LimitArguments,
    KeyArguments,
    AdminArguments,
    TlsArguments,
    CorsArguments,
    LogArguments,
):
    """The server's settings, of which none reaches the engine."""

    @classmethod
    def of(cls, options: object) -> Self:
        """Make settings from the namespace of a parser that has a flag for each field."""
        return cls(**{item.name: getattr(options, item.name) for item in fields(cls)})

    def check(self) -> None:
        """Raise ValueError for settings that exclude or need each other."""
        if self.root_path and not self.root_path.startswith("/"):
            raise ValueError(f"--root-path is {self.root_path!r}; it takes a path that begins with /")
        if self.ssl_certfile is None and (self.ssl_keyfile or self.ssl_ca_certs or self.ssl_cert_reqs):
            raise ValueError("--ssl-keyfile, --ssl-ca-certs and --ssl-cert-reqs need --ssl-certfile")
        if self.ssl_cert_reqs and self.ssl_ca_certs is None:
            raise ValueError("--ssl-cert-reqs needs --ssl-ca-certs, the authorities of clients' certificates")

    @property
    def scheme(self) -> str:
        return "http" if self.ssl_certfile is None else "https"

    @property
    def tls_files(self) -> TlsFiles | None:
        if self.ssl_certfile is None:
            return None
        return TlsFiles(
            self.ssl_certfile, self.ssl_keyfile, self.ssl_ca_certs, ssl.VerifyMode(self.ssl_cert_reqs)
        )
