"""The token with which a chat template ends an answer, found by rendering short conversations."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from engine_server.structured.vocabulary import MARK

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Words that no template has.
TEXT, THOUGHT, VALUE = "Tomvelk", "Wudrift", "Zaspurn"
PART = re.compile(f"{TEXT}|{THOUGHT}|{VALUE}")
QUESTION = {"role": "user", "content": "Hovdap"}
THOUGHTS = dict.fromkeys(("reasoning_content", "reasoning", "thinking"), THOUGHT)
CALL = {
    "id": "Ubirtqka1",
    "type": "function",
    "function": {"name": "quaxel", "arguments": {"kuldo": VALUE}},
}
# Answers of several parts.
ANSWERS: tuple[dict[str, Any], ...] = (
    {"content": TEXT, **THOUGHTS},
    {"content": "", **THOUGHTS, "tool_calls": [CALL]},
    {"content": TEXT, "tool_calls": [CALL]},
)

# Renders messages to a text. May raise any error.
Render = Callable[[list[dict[str, Any]]], str]
# Returns the token with which the tokenizer's chat template ends an answer; None if it is one of the given ends.
TemplateEnd = Callable[["PreTrainedTokenizerBase", Collection[int]], int | None]


class PrintedEnd(msgspec.Struct, frozen=True):
    """What a chat template prints after an answer, and between the parts of one."""

    after: str
    between: tuple[str, ...] = ()


def printed_end(render: Render) -> PrintedEnd | None:
    """Return what a template prints after an answer; None if it prints no answer."""
    _, found, after = _rendered(render, {"content": TEXT}).rpartition(TEXT)
    if not found:
        return None
    return PrintedEnd(after, tuple(_between(_rendered(render, answer) for answer in ANSWERS)))


def end_token(
    tokenizer: PreTrainedTokenizerBase,
    printed: PrintedEnd,
    ends: Collection[int],
    inner: Collection[str] = (),
) -> int | None:
    """Return the single special token that a template prints after an answer.

    None if one of `ends` is there, and for a token that also stands between the parts of answers, or that is one of
    their delimiters, `inner`.
    """
    special = {
        token.content: token_id
        for token_id, token in tokenizer.added_tokens_decoder.items()
        if token.special or MARK.fullmatch(token.content)
    }
    after, found = printed.after.lstrip(), []
    while token := max(filter(after.startswith, special), key=len, default=""):
        found.append(token)
        after = after[len(token) :]
    if len(found) != 1 or special[found[0]] in ends:
        return None
    if found[0] in inner or any(found[0] in text for text in printed.between):
        return None
    return special[found[0]]


def rendered_end(tokenizer: PreTrainedTokenizerBase, ends: Collection[int]) -> int | None:
    """Return the token with which a tokenizer's chat template ends an answer, which is none of `ends`; None without."""
    if not tokenizer.chat_template:
        return None
    printed = printed_end(lambda messages: str(tokenizer.apply_chat_template(messages, tokenize=False)))
    return None if printed is None else end_token(tokenizer, printed, ends)


def _rendered(render: Render, answer: dict[str, Any]) -> str:
    """Return a conversation with an answer as text; "" if the template refuses it."""
    try:
        return render([QUESTION, {"role": "assistant", **answer}])
    except Exception:  # a template may raise any
        return ""


def _between(texts: Iterator[str]) -> Iterator[str]:
    """Yield what stands between the first and the last part of answers that have several."""
    for text in texts:
        parts = list(PART.finditer(text))
        if len(parts) > 1:
            yield text[parts[0].end() : parts[-1].start()]
