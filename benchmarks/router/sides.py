"""The sides that are compared: the engines themselves, proxies, Fairlead's router, and the routers of others."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from benchmarks.router.engines import MODEL, nginx
from benchmarks.router.processes import free_port, process, python

KEY = "fl-benchmark"
# Limits that are counted and never reached.
KEYS = """
- {{name: bench, sha256: "{sha256}", requestsPerMinute: 100000000, tokensPerMinute: 100000000000, concurrency: 100000}}
"""
PROXY = """
daemon off; worker_processes 1; pid {folder}/proxy.pid; error_log {folder}/proxy-error.log;
events {{ worker_connections 16384; }}
http {{
  access_log off; keepalive_requests 1000000000; keepalive_timeout 600;
  client_body_temp_path {folder}; proxy_temp_path {folder}/p; fastcgi_temp_path {folder}/f;
  uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  client_body_buffer_size 1m; proxy_buffering off;
  upstream engines {{ {servers} keepalive 256; keepalive_requests 1000000000; }}
  server {{
    listen 127.0.0.1:{port};
    location / {{ proxy_pass http://engines; proxy_http_version 1.1; proxy_set_header Connection ""; }}
  }}
}}
"""


@dataclass(frozen=True)
class Side:
    """One address to measure; None as the pid stands for the engines themselves."""

    name: str
    url: str
    pid: int | None
    headers: Mapping[str, str] = field(default_factory=dict)


# Starts a side in front of engines on these ports; logs and configuration go to the folder.
Starter = Callable[[Sequence[int], Path], AbstractContextManager[Side]]


@contextmanager
def direct(engines: Sequence[int], folder: Path) -> Iterator[Side]:
    yield Side("direct", f"http://127.0.0.1:{engines[0]}", None)


@contextmanager
def nginx_proxy(engines: Sequence[int], folder: Path) -> Iterator[Side]:
    port = free_port()
    servers = " ".join(f"server 127.0.0.1:{engine} max_fails=0;" for engine in engines)
    config = folder / "proxy.conf"
    config.write_text(PROXY.format(folder=folder, port=port, servers=servers))
    with process(nginx(), "-c", str(config), log=folder / "proxy.log") as pid:
        yield Side("nginx proxy", f"http://127.0.0.1:{port}", pid)


@contextmanager
def copying_proxy(engines: Sequence[int], folder: Path) -> Iterator[Side]:
    port = free_port()
    command = python("benchmarks.router.copying_proxy", str(port), *map(str, engines))
    with process(*command, log=folder / "copying-proxy.log") as pid:
        yield Side("copying proxy", f"http://127.0.0.1:{port}", pid)


def fairlead(name: str, *options: str, checkout: Path | None = None) -> Starter:
    """Return the starter of this router, or that of another checkout, with further options of its command line."""

    @contextmanager
    def run(engines: Sequence[int], folder: Path) -> Iterator[Side]:
        port = free_port()
        endpoints = [f"--endpoint={MODEL}=http://127.0.0.1:{engine}" for engine in engines]
        keys = folder / "keys.yaml"
        keys.write_text(KEYS.format(sha256=sha256(KEY.encode()).hexdigest()))
        flags = ("--host=127.0.0.1", f"--port={port}", "--metrics-port=0", f"--keys-file={keys}", *options)
        command = python("engine_server.cli", "router", *flags, *endpoints)
        with process(*command, log=folder / f"{name.replace(' ', '-')}.log", folder=checkout) as pid:
            yield Side(name, f"http://127.0.0.1:{port}", pid, {"Authorization": f"Bearer {KEY}"})

    return run


def peer(name: str, *command: str) -> Starter:
    """Return the starter of a router with the command line of sglang-router, from which several descend."""

    @contextmanager
    def run(engines: Sequence[int], folder: Path) -> Iterator[Side]:
        port = free_port()
        workers = [f"http://127.0.0.1:{engine}" for engine in engines]
        flags = (
            "--host=127.0.0.1",
            f"--port={port}",
            f"--prometheus-port={free_port()}",
            "--log-level=error",
        )
        log = folder / f"{name.replace(' ', '-')}.log"
        with process(*command, *flags, "--worker-urls", *workers, log=log) as pid:
            yield Side(name, f"http://127.0.0.1:{port}", pid)

    return run


def vllm_router(peers: Path) -> Starter:
    """Return the starter of vllm-router, from a virtual environment, as it is by default."""
    return peer("vllm-router round_robin", str(peers / "bin/vllm-router"), "--policy=round_robin")


def starters(peers: Path | None) -> list[Starter]:
    """Return all sides. `peers` is a virtual environment with vllm-router and smg; without it they are left out."""
    sides: list[Starter] = [
        direct,
        nginx_proxy,
        fairlead("fairlead"),
        fairlead("fairlead with access log", "--access-log=json"),
    ]
    if peers is not None:
        vllm, smg = str(peers / "bin/vllm-router"), str(peers / "bin/smg")
        sides += [
            vllm_router(peers),
            peer("vllm-router cache_aware", vllm, "--policy=cache_aware"),
            peer("smg round_robin", smg, "launch", "--policy=round_robin"),
            peer("smg cache_aware", smg, "launch", "--policy=cache_aware"),
        ]
    return sides
