"""Log-probabilities in the shape of OpenAI's completions API."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import msgspec

from engine_server.server.api.openai_answer import finite, in_turns, join_arrays

if TYPE_CHECKING:
    from engine_server.engine.output.token_texts import TokenTexts
    from engine_server.requests.logprobs import Logprob, TokenLogprobs

# The JSON arrays of `Logprobs`, in the order of its fields.
Columns = list[bytes]
ARRAY = msgspec.Meta(extra_json_schema={"type": "array"})


class Logprobs(msgspec.Struct):
    """Log-probabilities of consecutive tokens; a prompt's first token has none."""

    # Where each token's text starts, in characters.
    text_offset: list[int] = []
    token_logprobs: list[float | None] = []
    tokens: list[str] = []
    top_logprobs: list[dict[str, float] | None] = []


class EncodedLogprobs(msgspec.Struct):
    """The same, encoded before the rest of their answer."""

    text_offset: Annotated[msgspec.Raw, ARRAY]
    token_logprobs: Annotated[msgspec.Raw, ARRAY]
    tokens: Annotated[msgspec.Raw, ARRAY]
    top_logprobs: Annotated[msgspec.Raw, ARRAY]


class TextPlace:
    """The place in a choice's text where the next token's text starts."""

    def __init__(self, texts: TokenTexts, *, skips_special: bool, as_ids: bool) -> None:
        """skips_special: special tokens are no part of the text. as_ids: name tokens by their ids."""
        # In characters; of a token that continues a character, where that one starts.
        self.offset = 0
        # The text of the prompt whose tokens come next, if the text begins with one.
        self.prompt: str | None = None
        self._texts = texts
        self._skips_special = skips_special
        self._as_ids = as_ids
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._in_character = False
        # A token of the prompt's text was passed.
        self._in_text = False

    def name(self, token_id: int, entry: Logprob) -> str:
        """Return a token as log-probabilities name it: its text, the bytes of a part of a character, or its id."""
        if self._as_ids:
            return id_name(token_id)
        if entry.decoded_token is None:
            return ""
        return entry.decoded_token or part_name(self._texts.part(token_id))

    def top(self, entries: TokenLogprobs) -> dict[str, float]:
        """Return log-probabilities by their tokens' names. A text of several tokens names the likeliest."""
        as_ids = self._as_ids
        top = {
            (not as_ids and entry.decoded_token) or self.name(token_id, entry): finite(entry)
            for token_id, entry in entries.items()
        }
        if len(top) == len(entries):
            return top
        names: dict[int, str] = {}
        taken: set[str] = set()
        for token_id, entry in sorted(entries.items(), key=lambda item: -item[1].logprob):
            name = self.name(token_id, entry)
            names[token_id] = id_name(token_id) if name in taken else name
            taken.add(name)
        return {names[token_id]: finite(entry) for token_id, entry in entries.items()}

    def pass_token(self, token_id: int, entries: TokenLogprobs) -> TokenLogprobs:
        """Move behind a token; return its entries, without the space that a text's beginning lacks."""
        text = entries[token_id].decoded_token
        if text is None:
            return entries
        if text and not self._in_character:
            if self.prompt is not None:
                return self._pass_prompt_token(token_id, text, entries)
            if not (self._skips_special and token_id in self._texts.special):
                self.offset += len(text)
            return entries
        self.offset += len(self._decoder.decode(text.encode() or self._texts.part(token_id)))
        self._in_character = bool(self._decoder.getstate()[0])
        return entries

    def _pass_prompt_token(self, token_id: int, text: str, entries: TokenLogprobs) -> TokenLogprobs:
        """Do the same for a token of a prompt, whose text says which special tokens it has."""
        assert self.prompt is not None
        first = text if self._in_text else self._texts.first(token_id) or ""
        if first != text and self.prompt.startswith(first):
            self.offset, self._in_text = len(first), True
            return {
                other: entry._replace(decoded_token=self._texts.first(other))
                for other, entry in entries.items()
            }
        # Any other token is added to the text, also where the tokenizer normalizes it.
        if self.prompt.startswith(text, self.offset) or token_id not in self._texts.special:
            self.offset, self._in_text = self.offset + len(text), True
        return entries


def part_name(content: bytes) -> str:
    """Return the name of a part of a character, as OpenAI's API writes it; empty without bytes."""
    return "bytes:" + "".join([f"\\x{byte:02x}" for byte in content]) if content else ""


def id_name(token_id: int) -> str:
    return f"token_id:{token_id}"


async def encode_columns(tokens: Sequence[tuple[int, TokenLogprobs]], place: TextPlace) -> list[Columns]:
    """Return the JSON of tokens' log-probabilities in parts, one for each turn of the event loop that encoded them."""
    if not tokens:
        return []
    return [encoded(to_logprobs(part, place)) async for part in in_turns(tokens, len(tokens[-1][1]))]


def encoded(logprobs: Logprobs) -> Columns:
    return [msgspec.json.encode(column) for column in msgspec.structs.astuple(logprobs)]


def join_columns(parts: Sequence[Columns]) -> EncodedLogprobs:
    return EncodedLogprobs(*map(join_arrays, zip(*parts, strict=True)))


def to_logprobs(tokens: Sequence[tuple[int, TokenLogprobs]], place: TextPlace) -> Logprobs:
    """Return the log-probabilities of consecutive tokens, and move the place behind them.

    tokens: each token's id, and its log-probabilities.
    """
    logprobs = Logprobs()
    for token_id, entries in tokens:
        logprobs.text_offset.append(place.offset)
        entries = place.pass_token(token_id, entries)
        own = entries[token_id]
        logprobs.tokens.append(place.name(token_id, own))
        if own.rank is None:
            logprobs.token_logprobs.append(None)
            logprobs.top_logprobs.append(None)
            continue
        logprobs.token_logprobs.append(finite(own))
        logprobs.top_logprobs.append(place.top(entries))
    return logprobs
