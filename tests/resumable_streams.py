"""Streams of an engine that can break off and be continued by another, as a router sees them."""

import json

from engine_server.contract.wire.continuation import StreamTerms, TokenReport
from engine_server.contract.wire.engine_report import ReportedUsage

KEEP_ALIVE = b": keep-alive\n\n"
DONE = b"data: [DONE]\n\n"


def event(number: int) -> bytes:
    return b'data: {"n": %d}\n\n' % number


WHOLE = b"".join(event(number) for number in range(6)) + DONE


class Stream:
    """Answers a request by events with the numbers 0 to 5, which stand for one token each, with reports.

    A resumed request gets those that follow. `failure` is called before the event of a number in `fails`, the first
    time that it is due.
    """

    def __init__(self, *fails, failure=None, model=b"weights-1", settings=b"", prompt=None, reports=True):
        """settings: the hash of its streams' settings; empty: it reports none. prompt: that of the prompt's tokens."""
        self.fails = set(fails)
        self.failure = failure or reset
        self.model = model
        self.settings = settings
        self.prompt = prompt
        # Number of streams that it has continued.
        self.continued = 0
        self.reports = reports

    async def __call__(self, engine, request, writer):
        resume = None
        if request.header("Fairlead-Resume") == "1":
            resume = json.loads(request.body)["fairlead"]["resume"]
            if resume["model"].encode() != self.model:
                refuse(writer, 409, "model_mismatch", self.model, self.settings)
                return
            terms = StreamTerms.parse(request.header("Fairlead-Stream") or "")
            if self.settings and (
                terms.settings not in (None, self.settings.decode())
                or terms.prompt_hash not in (None, self.prompt)
            ):
                refuse(writer, 409, "model_mismatch", self.model, self.settings)
                return
            self.continued += 1
            assert resume["token_ids"] == [100 + number for number in range(resume["events"])]
            assert (resume["id"], resume["created"], resume["seed"]) == ("chatcmpl-1", 7, 42)
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nFairlead-Model: %b\r\n%b"
            b"Transfer-Encoding: chunked\r\n\r\n" % (self.model, settings_line(self.settings))
        )
        start = resume["events"] if resume else 0
        for number in range(start, 6):
            if number in self.fails:
                self.fails.discard(number)
                await self.failure(engine, request, writer, number)
                if writer.transport.is_closing():
                    return
            self.write(writer, number, first=number == start)
            await writer.drain()
        if self.reports:
            chunk(writer, TokenReport(42, events=1, usage=ReportedUsage(3, 6)).encode())
        chunk(writer, DONE)
        writer.write(b"0\r\n\r\n")

    def write(self, writer, number, first):
        report = b""
        if self.reports:
            identity = {"id": "chatcmpl-1", "created": 7, "prompt_hash": self.prompt} if first else {}
            report = TokenReport(42, [100 + number], 1, **identity).encode()
        chunk(writer, report + event(number))


def chunk(writer, data: bytes) -> None:
    writer.write(b"%x\r\n%b\r\n" % (len(data), data))


def settings_line(settings: bytes) -> bytes:
    return b"Fairlead-Stream: %b\r\n" % settings if settings else b""


def refuse(writer, status: int, code: str, model: bytes = b"weights-1", settings: bytes = b"") -> None:
    body = json.dumps({"error": {"message": code, "type": "t", "param": None, "code": code}}).encode()
    writer.write(
        b"HTTP/1.1 %d Refused\r\nFairlead-Model: %b\r\n%bContent-Length: %d\r\n\r\n%b"
        % (status, model, settings_line(settings), len(body), body)
    )


async def keep_alive(engine, request, writer, number):
    chunk(writer, KEEP_ALIVE)
    await reset(engine, request, writer, number)


async def reset(engine, request, writer, number):
    await writer.drain()
    writer.transport.abort()


async def read(router, path="/v1/chat/completions", **body) -> bytes:
    async with router.session.post(
        f"{router.url}{path}", json={"model": "m", "stream": True, **body}
    ) as answer:
        assert answer.status == 200
        assert answer.content_type == "text/event-stream"
        return await answer.read()
