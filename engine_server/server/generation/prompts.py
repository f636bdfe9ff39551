"""Tokenization of a client's prompts and messages; long ones in a thread, so that other streams go on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from engine_server.contract.quoting import shorten
from engine_server.server.http.errors import ApiError

if TYPE_CHECKING:
    from engine_server.engine.async_llm import AsyncLLMEngine
    from engine_server.engine.input.processor import Processor
    from engine_server.requests.prompts import TokensPrompt

# In characters; longer texts take more than about 10 ms.
LONG_TEXT = 20_000
# The cost of a prompt, message or other item apart from its length, in characters that take the same time.
ITEM_OVERHEAD = 100

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ChatTurns:
    """A conversation as a chat template takes it."""

    messages: list[dict[str, Any]]
    # Append the beginning of an assistant's message.
    open_answer: bool
    # Leave the last message open, so that the answer continues it.
    continue_last: bool
    # The tools' definitions, in the form of OpenAI's chat API.
    tools: list[dict[str, Any]] | None = None
    # Further variables of the template.
    variables: Mapping[str, Any] = field(default_factory=dict)
    # In place of the model's own template.
    template: str | None = None
    # Add special tokens to those that the template writes itself.
    add_special_tokens: bool = False


async def tokenize_prompts(
    engine: AsyncLLMEngine,
    prompts: Sequence[str | list[int]],
    add_special_tokens: bool,
    cut: bool,
) -> list[TokensPrompt]:
    """Tokenize the prompts of a request. Raises ApiError 400 for a text that can't fit the context.

    cut: prompts that are too long are cut later.
    """
    processor = await engine.get_input_preprocessor()
    size = sum(len(prompt) + ITEM_OVERHEAD for prompt in prompts if isinstance(prompt, str))
    return await run_by_size(
        size, lambda: [tokens_prompt(processor, prompt, add_special_tokens, cut) for prompt in prompts]
    )


def tokens_prompt(
    processor: Processor, prompt: str | list[int], add_special_tokens: bool, cut: bool
) -> TokensPrompt:
    if isinstance(prompt, list):
        return {"prompt_token_ids": prompt}
    if not cut:
        check_length(processor, prompt, "prompt")
    assert processor.tokenizer is not None
    token_ids = processor.tokenizer(prompt, add_special_tokens=add_special_tokens).input_ids
    return {"prompt_token_ids": token_ids, "prompt": prompt}


def check_length(processor: Processor, text: str, param: str) -> None:
    if error := processor.too_long(text):
        raise ApiError(400, f"{param}: {error}" if param != "prompt" else error, param=param)


async def decode_prompts(engine: AsyncLLMEngine, prompts: Sequence[TokensPrompt]) -> list[TokensPrompt]:
    """Return prompts with their texts, decoded from the tokens of those that have none."""
    processor = await engine.get_input_preprocessor()
    size = sum(
        len(prompt["prompt_token_ids"]) + ITEM_OVERHEAD for prompt in prompts if "prompt" not in prompt
    )
    return await run_by_size(size, lambda: [decoded_prompt(processor, prompt) for prompt in prompts])


def decoded_prompt(processor: Processor, prompt: TokensPrompt) -> TokensPrompt:
    token_ids = prompt["prompt_token_ids"]
    if "prompt" in prompt or not token_ids:
        return prompt
    if min(token_ids) < 0 or max(token_ids) >= processor.config.vocab_size:
        return prompt  # the engine refuses it
    tokenizer: Any = processor.tokenizer
    return {**prompt, "prompt": tokenizer.decode(token_ids)}


async def tokenize_chat(engine: AsyncLLMEngine, turns: ChatTurns) -> TokensPrompt:
    """Render the chat template and tokenize the result. Raises ApiError 400 where the template refuses the messages."""
    (prompt,) = await tokenize_chats(engine, [turns])
    return prompt


async def tokenize_chats(engine: AsyncLLMEngine, chats: Sequence[ChatTurns]) -> list[TokensPrompt]:
    """Render and tokenize several conversations, as `tokenize_chat` does one."""
    processor = await engine.get_input_preprocessor()
    size = sum(
        num_characters(part)
        for turns in chats
        for part in (turns.messages, turns.tools, dict(turns.variables))
    )
    return await run_by_size(size, lambda: [render_chat(processor, turns) for turns in chats])


def num_characters(value: object) -> int:
    """Return about how many characters a template renders for a value of JSON's types."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return ITEM_OVERHEAD + sum(num_characters(item) for item in value.values())
    if isinstance(value, list):
        return ITEM_OVERHEAD + sum(num_characters(item) for item in value)
    return 1


def render_chat(processor: Processor, turns: ChatTurns) -> TokensPrompt:
    tokenizer: Any = processor.tokenizer
    try:
        text: str = tokenizer.apply_chat_template(
            turns.messages,
            tokenize=False,
            add_generation_prompt=turns.open_answer,
            continue_final_message=turns.continue_last,
            tools=turns.tools,
            chat_template=turns.template,
            **turns.variables,
        )
    except Exception as error:  # a template may raise any, given data that it doesn't expect
        message = f"messages don't fit the model's chat template: {shorten(str(error))}"
        raise ApiError(400, message, param="messages") from None
    check_length(processor, text, "messages")
    token_ids = tokenizer(text, add_special_tokens=turns.add_special_tokens).input_ids
    return {"prompt_token_ids": token_ids, "prompt": text}


async def run_by_size(size: int, work: Callable[[], T]) -> T:
    """Run `work` at once, or in a thread if its input has `LONG_TEXT` characters or more."""
    return work() if size < LONG_TEXT else await asyncio.to_thread(work)
