"""Tokenization of a pooling request's inputs, and the check of their lengths before any of them is queued."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from engine_server.contract.base.bounds import PAIR_CHARACTERS
from engine_server.contract.wire.errors import ErrorCode
from engine_server.engine.input import text_pairs
from engine_server.engine.input.tokenizer import Truncation, encode_texts
from engine_server.requests.errors import InvalidRequestError
from engine_server.requests.prompts import TokensPrompt
from engine_server.server.api.tokenizer import require_tokenizer
from engine_server.server.conversation.chat_prompt import chat_prompt
from engine_server.server.generation.prompts import tokenize_chat
from engine_server.server.generation.threads import run_by_size
from engine_server.server.http.errors import ApiError

if TYPE_CHECKING:
    from engine_server.server.api.pooling.request import InputRequest
    from engine_server.server.loaded_model import LoadedModel


class NamedPrompt(NamedTuple):
    """A prompt, and the field of the request that it came from."""

    prompt: TokensPrompt
    field: str

    @property
    def num_tokens(self) -> int:
        return len(self.prompt["prompt_token_ids"])


async def input_prompts(model: LoadedModel, request: InputRequest, before: str = "") -> list[NamedPrompt]:
    """Return the prompts of `input`, or the one of `messages`. Raises ApiError for one that is too long or empty.

    before: text that is put before each text.
    """
    truncation = request.truncation(model.max_model_len)
    if request.input is None:
        require_tokenizer(model)
        conversation = request.conversation(model.settings, open_answer=False)
        prompt = replace(chat_prompt(conversation, model.answer_layout, None), tools=request.tools)
        chat = await tokenize_chat(
            model.engine, prompt, model.max_model_len if truncation.longest is None else None
        )
        prompts = [NamedPrompt(tokens(truncate(chat["prompt_token_ids"], truncation)), "messages")]
    else:
        special = request.add_special_tokens is not False
        token_ids = await input_tokens(model, request.input, "input", truncation, special, before)
        prompts = [NamedPrompt(tokens(ids), entry("input", token_ids, i)) for i, ids in enumerate(token_ids)]
    check_lengths(model, prompts)
    return prompts


async def input_tokens(
    model: LoadedModel,
    inputs: Sequence[str] | Sequence[list[int]],
    field: str,
    truncation: Truncation,
    add_special_tokens: bool = True,
    before: str = "",
) -> list[list[int]]:
    """Return the token ids of texts, or the given token ids, truncated. field: the field of the inputs.

    before: text that is put before each text.

    Raises ApiError for a text that is too long by its number of characters, without tokenizing it.
    """
    texts = [model.pooling.as_read(before + one) for one in inputs if isinstance(one, str)]
    if not texts:
        return [truncate(one, truncation) for one in inputs if isinstance(one, list)]
    tokenizer = require_tokenizer(model)
    processor = await model.engine.get_input_preprocessor()
    is_cut = truncation.longest is not None or truncation.longest_first is not None

    def tokenize() -> list[list[int]]:
        for index, text in enumerate([] if is_cut else texts):
            try:
                processor.check_length(text, model.max_model_len)
            except InvalidRequestError as error:
                name = entry(field, texts, index)
                raise ApiError(ErrorCode.INVALID_VALUE, f"{name}: {error}", param=name) from None
        return encode_texts(tokenizer, texts, truncation, add_special_tokens)

    return await run_by_size(sum(map(len, texts)), tokenize)


async def pair_prompts(
    model: LoadedModel,
    pairs: Sequence[tuple[str, str]],
    truncation: Truncation,
    field: str,
    instruction: str | None = None,
) -> list[NamedPrompt]:
    """Return a prompt for each pair of texts. Raises ApiError 400.

    field: the field of the second texts. instruction: it is a part of each prompt.
    """
    tokenizer, pooling = require_tokenizer(model), model.pooling
    size = sum(len(first) + len(second) + len(instruction or "") for first, second in pairs)
    if error := PAIR_CHARACTERS.exceeded(size):
        raise ApiError(ErrorCode.INVALID_VALUE, f"{field}: {error}", param=field)
    encoded = await run_by_size(
        size, lambda: text_pairs.pair_prompts(tokenizer, pooling, pairs, truncation, instruction)
    )
    prompts = [NamedPrompt(prompt, entry(field, encoded, index)) for index, prompt in enumerate(encoded)]
    check_lengths(model, prompts)
    return prompts


def check_lengths(model: LoadedModel, prompts: Sequence[NamedPrompt]) -> None:
    """Raise ApiError 400, which names the input, for a prompt that is empty or longer than the context."""
    for prompt in prompts:
        if not prompt.num_tokens:
            message = f"{prompt.field} is empty; it takes at least one token"
            raise ApiError(ErrorCode.INVALID_VALUE, message, param=prompt.field)
        if prompt.num_tokens > model.max_model_len:
            raise ApiError(
                ErrorCode.INVALID_VALUE,
                f"the model's maximum context length is {model.max_model_len} tokens; {prompt.field} has "
                f"{prompt.num_tokens} tokens. Please reduce the length of the input prompt, or cut it to the context "
                "by truncate_prompt_tokens: -1",
                param=prompt.field,
            )


def entry(field: str, entries: Sequence[object], index: int) -> str:
    """Return the path of an entry of a field, or the field alone if it has only one."""
    return f"{field}.{index}" if len(entries) > 1 else field


def tokens(token_ids: list[int]) -> TokensPrompt:
    return {"prompt_token_ids": token_ids}


def truncate(token_ids: list[int], truncation: Truncation) -> list[int]:
    longest = truncation.longest
    if longest is None or len(token_ids) <= longest:
        return token_ids
    return token_ids[:longest] if truncation.side == "right" else token_ids[-longest:]
