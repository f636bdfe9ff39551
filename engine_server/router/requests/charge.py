"""The tokens that a request is charged: those that its engine reports, up to what the request can have used."""

from engine_server.contract.wire.engine_report import ReportedUsage
from engine_server.contract.wire.paths import TOKENIZER_PATHS

# Of ordinary text.
BYTES_PER_TOKEN = 4
# More tokens than bytes are legitimate: templates add some, and a ranking repeats its query for each document.
MOST_TOKENS_PER_BYTE = 16
# Of any request, since answers are longer than their requests.
MOST_TOKENS = 1 << 20
FREE_PATHS = frozenset(path.encode() for path in TOKENIZER_PATHS)


def estimated_tokens(path: bytes, prompt_size: int) -> int:
    """Return the tokens of a prompt by the bytes of its abridged body: none where a tokenizer alone works."""
    return 0 if path in FREE_PATHS else prompt_size // BYTES_PER_TOKEN


def chargeable(usage: ReportedUsage, body_size: int) -> ReportedUsage:
    """Return the usage, cut to the most that a request with a body of as many bytes can have."""
    most = MOST_TOKENS + MOST_TOKENS_PER_BYTE * body_size
    if usage.prompt_tokens + usage.completion_tokens <= most:
        return usage
    prompt = min(usage.prompt_tokens, most)
    return ReportedUsage(prompt, min(usage.completion_tokens, most - prompt))
