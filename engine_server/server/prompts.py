"""From what a client sends to token ids. Long texts are tokenised in a thread, so that streams go on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from jinja2 import TemplateError

from engine_server.server.errors import ApiError

if TYPE_CHECKING:
    from engine_server.engine.async_llm import AsyncLLMEngine
    from engine_server.requests.prompts import TokensPrompt
    from engine_server.server.protocol import ChatCompletionRequest, Message

LONG_TEXT = 20_000  # characters; tokenising them takes some 10 ms

T = TypeVar("T")


async def completion_prompt(engine: AsyncLLMEngine, prompt: str | list[int]) -> TokensPrompt:
    if isinstance(prompt, list):
        return {"prompt_token_ids": prompt}
    tokenizer = await engine.get_tokenizer()
    ids = await _aside(len(prompt), lambda: tokenizer(prompt).input_ids)
    return {"prompt_token_ids": ids, "prompt": prompt}


async def chat_prompt(engine: AsyncLLMEngine, request: ChatCompletionRequest) -> TokensPrompt:
    tokenizer = await engine.get_tokenizer()
    size = sum(len(message.content) for message in request.messages)
    return await _aside(size, lambda: _render(tokenizer, request))


def _render(tokenizer: Any, request: ChatCompletionRequest) -> TokensPrompt:
    continued = bool(request.continue_final_message)
    opened = not continued if request.add_generation_prompt is None else request.add_generation_prompt
    if continued and opened:
        message = "continue_final_message and add_generation_prompt can't both be true"
        raise ApiError(400, message, param="continue_final_message")
    try:
        text: str = tokenizer.apply_chat_template(
            [_turn(message) for message in request.messages],
            tokenize=False,
            add_generation_prompt=opened,
            continue_final_message=continued,
        )
    except (TemplateError, ValueError) as error:
        raise ApiError(
            400, f"messages don't fit the model's chat template: {error}", param="messages"
        ) from None
    # The template writes the special tokens itself.
    return {"prompt_token_ids": tokenizer(text, add_special_tokens=False).input_ids, "prompt": text}


def _turn(message: Message) -> dict[str, str]:
    # "developer" is OpenAI's newer word for "system"; models' templates know the older one.
    role = "system" if message.role == "developer" else message.role
    turn = {"role": role, "content": message.content}
    return turn if message.name is None else turn | {"name": message.name}


async def _aside(size: int, work: Callable[[], T]) -> T:
    return work() if size < LONG_TEXT else await asyncio.to_thread(work)
