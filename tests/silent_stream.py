"""A server for a process of its own, which a test stops or cuts off: it answers with one event, and then with nothing.

Usage: python silent_stream.py HOST. It writes its port, and answers `/ready` for as long as it runs.
"""

import asyncio
import sys

from resumable_streams import chunk, event

from engine_server.contract.wire.continuation import TokenReport

READY = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nFairlead-Model: weights-1\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    if b" /ready " in head:
        writer.write(READY)
        writer.close()
        return
    writer.write(STREAM_HEAD)
    chunk(writer, TokenReport(42, [100], 1, id="chatcmpl-1", created=7).encode() + event(0))
    await reader.read()
    await asyncio.Event().wait()


async def serve(host: str) -> None:
    server = await asyncio.start_server(answer, host, 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1]))
