"""Prompts of two texts: joined as cross-encoders read them, or rendered by the template of a language model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from engine_server.config import PoolingConfig
from engine_server.contract.base.quoting import shorten
from engine_server.engine.input.tokenizer import WHOLE, Truncation, backend_of, encode_pairs, encode_texts
from engine_server.requests.errors import InvalidRequestError
from engine_server.requests.prompts import TokensPrompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Texts that no template has, to find out what it renders.
PROBES = "first-text-probe", "second-text-probe"


def pair_prompts(
    tokenizer: PreTrainedTokenizerBase,
    config: PoolingConfig,
    pairs: Sequence[tuple[str, str]],
    truncation: Truncation = WHOLE,
    instruction: str | None = None,
) -> list[TokensPrompt]:
    """Return a prompt for each pair of a query and a document.

    instruction: what makes a document relevant; None: the model's default. Any thread may call this. Raises
    InvalidRequestError for an instruction that the model doesn't take, or a limit that its template exceeds.
    """
    if config.score_tokens:
        template = PairTemplate(tokenizer, config.template_arguments, instruction or config.instruction)
        return template.prompts(pairs, truncation)
    if instruction is not None:
        raise InvalidRequestError(
            "instruction is set; the model's prompts have no place for one", "instruction"
        )
    return encode_pairs(tokenizer, pairs, truncation)


def check_template(tokenizer: PreTrainedTokenizerBase, config: PoolingConfig) -> None:
    """Raise ValueError if a model that scores by its answers has no template that renders both texts."""
    if not config.score_tokens:
        return
    try:
        text = PairTemplate(tokenizer, config.template_arguments, None).text(*PROBES)
    except (InvalidRequestError, ValueError) as error:
        raise ValueError(f"score tokens need a chat template: {error}") from error
    if not all(probe in text for probe in PROBES):
        raise ValueError(
            "score tokens need a chat template that renders messages of the roles query and document, and an "
            "instruction as that of the role system, which the model's doesn't"
        )


class PairTemplate:
    """The chat template of a language model that scores pairs of texts.

    It takes what sentence-transformers gives it: messages of the roles query and document, and before them one of the
    role system with the instruction if there is one.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, arguments: Mapping[str, Any], instruction: str | None
    ) -> None:
        """arguments: of apply_chat_template."""
        self._tokenizer: Any = tokenizer
        self._arguments = arguments
        self._system = [{"role": "system", "content": instruction}] if instruction else []

    def text(self, query: str, document: str) -> str:
        """Render two texts. Raises InvalidRequestError if the template refuses them."""
        messages = [
            *self._system,
            {"role": "query", "content": query},
            {"role": "document", "content": document},
        ]
        try:
            text: str = self._tokenizer.apply_chat_template(messages, tokenize=False, **self._arguments)
        except Exception as error:  # a template may raise any
            reason = shorten(str(error))
            raise InvalidRequestError(
                f"the texts don't fit the model's chat template: {reason}", "documents"
            ) from None
        return text

    def prompts(self, pairs: Sequence[tuple[str, str]], truncation: Truncation) -> list[TokensPrompt]:
        """Return the tokens of each pair of texts, cut so that the template stays whole."""
        limits, side = (truncation.longest_first, truncation.longest_second), truncation.side
        texts = [
            [cut(self._tokenizer, text, limit, side) for text, limit in zip(pair, limits, strict=True)]
            for pair in pairs
        ]
        encoded = self._encode([self.text(*pair) for pair in texts])
        if (longest := truncation.longest) is not None:
            encoded = [self._fit(*each, longest, side) for each in zip(texts, encoded, strict=True)]
        return [{"prompt_token_ids": token_ids} for token_ids in encoded]

    def _fit(self, texts: list[str], token_ids: list[int], longest: int, side: str) -> list[int]:
        """Return the tokens of two texts, cut to the longest prompt: the document first, then the query."""
        for index in (1, 0):
            if len(token_ids) <= longest:
                break
            whole = texts[index]
            kept = len(self._encode([whole])[0])
            while kept > 0 and (surplus := len(token_ids) - longest) > 0:
                kept -= surplus
                texts[index] = cut(self._tokenizer, whole, max(kept, 0), side)
                (token_ids,) = self._encode([self.text(*texts)])
        if len(token_ids) > longest:
            raise InvalidRequestError(
                f"truncate_prompt_tokens is {longest}; the model's template alone is {len(token_ids)}",
                "truncate_prompt_tokens",
            )
        return token_ids

    def _encode(self, texts: Sequence[str]) -> list[list[int]]:
        return encode_texts(self._tokenizer, texts, add_special_tokens=False)


def cut(tokenizer: PreTrainedTokenizerBase, text: str, longest: int | None, side: str) -> str:
    """Return the part of a text that its first `longest` tokens are; its last ones if `side` is left."""
    if longest is None:
        return text
    (encoding,) = backend_of(tokenizer).encode_batch([text], add_special_tokens=False)  # others run meanwhile
    offsets = encoding.offsets
    if len(offsets) <= longest:
        return text
    if not longest:
        return ""
    return text[: offsets[longest - 1][1]] if side == "right" else text[offsets[-longest][0] :]
