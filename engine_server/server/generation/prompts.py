"""Tokenization of a client's prompts and messages; long ones in a thread, so that other streams go on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from jinja2 import TemplateError

from engine_server.server.http.errors import ApiError

if TYPE_CHECKING:
    from engine_server.engine.async_llm import AsyncLLMEngine
    from engine_server.requests.prompts import TokensPrompt

# In characters; longer texts take more than about 10 ms.
LONG_TEXT = 20_000

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
    # Add special tokens to those that the template writes itself.
    add_special_tokens: bool = False


async def tokenize_prompt(engine: AsyncLLMEngine, prompt: str | list[int]) -> TokensPrompt:
    if isinstance(prompt, list):
        return {"prompt_token_ids": prompt}
    tokenizer = await engine.get_tokenizer()
    token_ids = await run_by_size(len(prompt), lambda: tokenizer(prompt).input_ids)
    return {"prompt_token_ids": token_ids, "prompt": prompt}


async def tokenize_chat(engine: AsyncLLMEngine, turns: ChatTurns) -> TokensPrompt:
    """Render the chat template and tokenize the result. Raises ApiError 400 where the template refuses the messages."""
    tokenizer = await engine.get_tokenizer()
    size = sum(len(message["content"]) for message in turns.messages)
    return await run_by_size(size, lambda: render_chat(tokenizer, turns))


def render_chat(tokenizer: Any, turns: ChatTurns) -> TokensPrompt:
    try:
        text: str = tokenizer.apply_chat_template(
            turns.messages,
            tokenize=False,
            add_generation_prompt=turns.open_answer,
            continue_final_message=turns.continue_last,
            tools=turns.tools,
            **turns.variables,
        )
    except (TemplateError, ValueError) as error:
        message = f"messages don't fit the model's chat template: {error}"
        raise ApiError(400, message, param="messages") from None
    token_ids = tokenizer(text, add_special_tokens=turns.add_special_tokens).input_ids
    return {"prompt_token_ids": token_ids, "prompt": text}


async def run_by_size(size: int, work: Callable[[], T]) -> T:
    """Run `work` at once, or in a thread if its input has `LONG_TEXT` characters or more."""
    return work() if size < LONG_TEXT else await asyncio.to_thread(work)
