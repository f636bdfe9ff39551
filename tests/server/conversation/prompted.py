"""The prompts of requests."""

from engine_server.server.api.generation_request import GenerationRequest
from engine_server.server.conversation.chat_prompt import ChatPrompt
from engine_server.server.conversation.layout import PLAIN_TEXT, Layout
from engine_server.server.settings import ApiSettings


def prompted(body: GenerationRequest, layout: Layout = PLAIN_TEXT) -> ChatPrompt:
    """Return the prompt of a request's conversation for a template that prints all of it."""
    (prompt,) = body.source(ApiSettings(), layout, 1024).conversations  # type: ignore[union-attr]
    assert isinstance(prompt, ChatPrompt)
    return prompt
