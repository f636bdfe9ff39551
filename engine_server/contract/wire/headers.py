"""The names of header fields between router and engines, and the line of a field's value.

The router strips those of Fairlead from both directions. `engine_report` reads those of answers, and `router_head`
those of requests.
"""

from typing import ClassVar

# Request: send a comment line with the seed and the new token ids before each SSE chunk.
REPORT_TOKENS = "Fairlead-Report-Tokens"
# Request: the body continues a stream that another replica began.
RESUME = "Fairlead-Resume"
# Request: what the body that continues a stream has no field for: cached=N, prompt=HASH, settings=HASH (`StreamTerms`).
# Response: hash of the settings of streams: sampling defaults, default template arguments, response template, parsers.
STREAM = "Fairlead-Stream"
# Request: NAMESPACE/NAME of the deployment that must answer.
DEPLOYMENT = "Fairlead-Deployment"
# Request: the adapter that must be applied.
ADAPTER = "Fairlead-Adapter"
# Request: pseudonyms of the caller and of the scope of its cached prompts, and its priority.
CALLER = "Fairlead-Caller"
# Response: running and waiting requests, free room and KV cache use of the engine.
LOAD = "Fairlead-Load"
# Response: tokens that the request used.
USAGE = "Fairlead-Usage"
# Response: hash of all that a continued stream depends on, such as weights, tokenizer and dtype.
MODEL = "Fairlead-Model"

# Request, of clients too: seconds in which the answer has to end. A router sends the rest of the client's.
REQUEST_TIMEOUT = "X-Request-Timeout"

# Those of Fairlead.
ALL_HEADERS = frozenset({REPORT_TOKENS, RESUME, STREAM, DEPLOYMENT, ADAPTER, CALLER, LOAD, USAGE, MODEL})


def line(name: str, value: str) -> bytes:
    """Return the line of a field in a head."""
    return f"{name}: {value}\r\n".encode()


class HeaderField:
    """The value of a field."""

    __slots__ = ()

    NAME: ClassVar[str]

    def value(self) -> str:
        """Return the value as the field has it."""
        raise NotImplementedError

    def line(self) -> bytes:
        """Return the line of a head."""
        return line(self.NAME, self.value())
