"""The header fields that pass from clients to engines, and those that pass back. All others end at the router."""

import re
from collections.abc import Iterable

from engine_server.contract.wire.headers import ALL_HEADERS, REQUEST_TIMEOUT

HOP_BY_HOP_FIELDS = (
    b"connection",
    b"keep-alive",
    b"proxy-connection",
    b"te",
    b"trailer",
    b"transfer-encoding",
    b"upgrade",
)
# Fields that the router writes itself, or answers.
REWRITTEN_FIELDS = (
    b"content-length",
    b"expect",
    b"http2-settings",
    b"x-request-id",
    REQUEST_TIMEOUT.lower().encode(),
)
# Fields with keys, which the router adds for the engines that may have them.
CREDENTIAL_FIELDS = (b"authorization", b"x-api-key")
# Fields that say who the client is. The router itself reads them; to an engine the client is the router.
SENDER_FIELDS = (b"origin", b"x-forwarded-for")
# Fields of these lists and with these beginnings never pass, whatever is added to the fields that do.
KEPT = frozenset((*HOP_BY_HOP_FIELDS, *REWRITTEN_FIELDS, *CREDENTIAL_FIELDS, *SENDER_FIELDS))
KEPT_BEGINNINGS = (b"fairlead-", b"access-control-", b"sec-fetch-")
# How names of fields with secrets end: OpenAI-Api-Key, X-Auth-Token. They pass if they are listed by their whole names.
SECRET_ENDINGS = (b"key", b"token", b"secret", b"authorization")
# Fields that the router looks at, whether they pass or not.
READ = KEPT | {
    *(name.lower().encode() for name in ALL_HEADERS),
    b"access-control-request-headers",
    b"host",
    b"content-type",
    b"content-encoding",
    b"retry-after",
    b"x-session-id",
    b"traceparent",
}
# Clients keep to one spelling of a name, so treatments are remembered as it was written.
MOST_KNOWN_NAMES = 1024
LONGEST_KNOWN_NAME = 64
# A name, or a beginning of names and `*`, in lower case.
PATTERN = re.compile(rb"[-!#$%&'+.^_`|~0-9a-z]*\*?")


class ForwardedFields:
    """The fields that pass in one direction."""

    def __init__(self, patterns: Iterable[bytes]) -> None:
        """Pass the fields with these names; `*` at the end of one stands for any end."""
        self._patterns = tuple(patterns)
        self._names = frozenset(self._patterns)
        self._beginnings = tuple(one[:-1] for one in self._patterns if one.endswith(b"*"))
        # Treatments by name as it was written.
        self.known: dict[bytes, tuple[bytes | None, bool]] = {}

    def with_more(self, patterns: Iterable[bytes]) -> "ForwardedFields":
        """Return the fields that pass if those of `patterns` do too."""
        return ForwardedFields((*self._patterns, *patterns))

    def include(self, key: bytes) -> bool:
        """Return True if the field with this name in lower case passes."""
        if key in KEPT or key.startswith(KEPT_BEGINNINGS):
            return False
        if key in self._names:
            return True
        return key.startswith(self._beginnings) and not key.endswith(SECRET_ENDINGS)

    def treatment(self, name: bytes) -> tuple[bytes | None, bool]:
        """Return the name in lower case if the router reads the field, else None, and True if it is forwarded."""
        key = name.lower()
        treatment = (key if key in READ else None, self.include(key))
        if len(self.known) < MOST_KNOWN_NAMES and len(name) <= LONGEST_KNOWN_NAME:
            self.known[name] = treatment
        return treatment


REQUEST_FIELDS = ForwardedFields(
    (
        b"host",
        b"user-agent",
        b"accept*",
        b"content-type",
        b"content-encoding",
        b"x-session-id",
        b"session_id",
        # Of clients of OpenAI's and Anthropic's APIs.
        b"openai-*",
        b"anthropic-*",
        b"x-stainless-*",
        # Traces.
        b"traceparent",
        b"tracestate",
        b"baggage",
        b"b3",
        b"x-b3-*",
        b"x-datadog-*",
        b"x-amzn-trace-id",
        b"x-cloud-trace-context",
        b"sentry-trace",
    )
)
ANSWER_FIELDS = ForwardedFields(
    (
        b"content-type",
        b"content-encoding",
        b"cache-control",
        b"vary",
        b"allow",
        b"retry-after",
        b"retry-after-ms",
        b"x-should-retry",
        b"request-id",
        b"openai-*",
        b"anthropic-*",
        b"x-ratelimit-*",
        b"x-fairlead-*",
        b"x-accel-buffering",
        b"server-timing",
        b"traceresponse",
    )
)


def parse_pattern(text: str) -> bytes:
    """Return the pattern of fields to forward in a flag's value. Raises ValueError for one that passes none."""
    pattern = text.lower().encode()
    if not pattern or not PATTERN.fullmatch(pattern):
        raise ValueError(
            f"{text!r} is no name of a header field; it takes NAME, or the beginning of names and *"
        )
    if pattern in CREDENTIAL_FIELDS:
        raise ValueError(f"{text} is a credential; --forward-credentials forwards them")
    if pattern in KEPT or pattern.startswith(KEPT_BEGINNINGS):
        raise ValueError(f"{text} is never forwarded")
    return pattern
