"""OpenTelemetry spans of requests that belong to a sampled trace: one for a request, and one for each attempt.

Names and attributes follow the semantic conventions for HTTP and generative AI. Spans never have content.
"""

import os
import re
from collections.abc import Mapping

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from engine_server.router.http.wire import Request
from engine_server.router.routing.endpoint import Endpoint

# W3C Trace Context, version 00; the flag `sampled` is the last bit.
SAMPLED = re.compile(rb"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f][13579bdf]")
_context = TraceContextTextMapPropagator()


class Tracing:
    """Begins traces of requests, and exports their spans in batches from a thread of its own."""

    def __init__(self, endpoint: str) -> None:
        """Export to `endpoint`, a URL that takes OTLP over HTTP."""
        name = os.environ.get("OTEL_SERVICE_NAME", "fairlead-router")
        self._provider = TracerProvider(resource=Resource.create({"service.name": name}))
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint)))
        self._tracer = self._provider.get_tracer("engine_server.router")

    def begin(self, request: Request) -> "Trace | None":
        """Return the trace of a request, or None if its client does not ask for one."""
        parent = request.fields.get(b"traceparent", b"")
        return Trace(self, request, parent) if SAMPLED.fullmatch(parent) else None

    def span(self, name: str, kind: SpanKind, parent: Span | bytes) -> Span:
        """Start a span below another one, or below the one that a traceparent names."""
        if isinstance(parent, bytes):
            context = _context.extract({"traceparent": parent.decode()})
        else:
            context = set_span_in_context(parent)
        return self._tracer.start_span(name, context, kind)

    def close(self) -> None:
        """Export what is left."""
        self._provider.shutdown()


class Trace:
    """The spans of one request."""

    def __init__(self, tracing: Tracing, request: Request, parent: bytes) -> None:
        self._tracing = tracing
        self._parent = parent
        path = request.target.partition(b"?")[0].decode("ascii", "backslashreplace")
        self._span = tracing.span(f"{request.method.decode()} {path}", SpanKind.SERVER, parent)
        self._span.set_attribute("http.request.method", request.method.decode())
        self._span.set_attribute("url.path", path)
        self._attempt: Span | None = None

    def begin_attempt(self, endpoint: Endpoint) -> None:
        """Start the span of an attempt; the one before, if there was one, has failed."""
        if self._attempt is not None:
            self._attempt.set_status(Status(StatusCode.ERROR))
        self._end_attempt()
        self._attempt = self._tracing.span("attempt", SpanKind.CLIENT, self._span)
        self._attempt.set_attributes(endpoint.address.attributes())

    def inject(self, request: Request) -> None:
        """Name the attempt's span as the parent of the engine's in the request, instead of the client's span."""
        carrier: dict[str, str] = {}
        _context.inject(carrier, set_span_in_context(self._attempt or self._span))
        parent = carrier["traceparent"].encode()
        request.lines = request.lines.replace(self._parent, parent)
        self._parent = parent

    def end(self, status: int, attributes: Mapping[str, str | int]) -> None:
        """End the request's span with the status of the answer, and further attributes."""
        self._end_attempt()
        self._span.set_attribute("http.response.status_code", status)
        self._span.set_attributes(attributes)
        if status >= 500:
            self._span.set_status(Status(StatusCode.ERROR))
        self._span.end()

    def _end_attempt(self) -> None:
        if self._attempt is not None:
            self._attempt.end()
            self._attempt = None
