"""The router's process, and the addresses at which it is reached."""

from dataclasses import dataclass
from pathlib import Path

from engine_server.contract.base.authority import authority
from engine_server.contract.base.listening import EVERY_ADDRESS
from engine_server.contract.cluster.drain import termination_grace
from llm_local.engines import Command
from llm_local.processes import Program

# What listens on all addresses is asked on this one.
LOOPBACK = dict.fromkeys(("0.0.0.0", EVERY_ADDRESS), "127.0.0.1")  # noqa: S104


@dataclass(frozen=True, slots=True)
class Router:
    """The router's settings that the command line has."""

    host: str
    port: int
    # Of callers' keys; without it anybody may ask.
    keys_file: Path | None = None

    @property
    def url(self) -> str:
        """The address for programs of this machine."""
        return f"http://{authority(LOOPBACK.get(self.host, self.host), self.port)}"

    @property
    def is_open(self) -> bool:
        """True if other machines may reach it without a key."""
        is_local = self.host in ("localhost", "::1") or self.host.startswith("127.")
        return not is_local and self.keys_file is None

    def program(self, command: Command, endpoints_file: Path, drain: int) -> Program:
        """Return the process. drain: the seconds that requests in flight get at its end."""
        arguments = [
            "router",
            f"--host={self.host}",
            f"--port={self.port}",
            "--metrics-port=0",  # the router logs its address
            f"--drain-timeout={drain}",
            f"--endpoints-file={endpoints_file}",
        ]
        if self.keys_file is not None:
            arguments.append(f"--keys-file={self.keys_file}")
        return Program("router", command(arguments), grace=termination_grace(drain))
