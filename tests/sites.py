"""Small applications behind the server's own sockets, in this process."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvloop
from waiting import until

from engine_server.server.serving import Site, http_server


@contextmanager
def running(site: Site) -> Iterator[None]:
    """Serve a site in a thread, in the event loop that the server uses."""
    server = http_server(site)
    thread = threading.Thread(target=lambda: uvloop.run(server.serve(sockets=[site.listener])))
    thread.start()
    try:
        until(lambda: server.started)
        yield
    finally:
        server.should_exit = True
        thread.join()


async def answer_ok(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})
