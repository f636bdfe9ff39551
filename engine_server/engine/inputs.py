"""The forms in which a prompt may come."""

from typing import NotRequired, TypedDict


class TextPrompt(TypedDict):
    """Text, tokenised by the engine."""

    prompt: str


class TokensPrompt(TypedDict):
    """Token ids as they are; `prompt` is the text to show beside them, if any."""

    prompt_token_ids: list[int]
    prompt: NotRequired[str]


PromptType = str | TextPrompt | TokensPrompt


class InputRegistry:
    """Where models would register how their inputs are processed; every prompt here is tokens."""


INPUT_REGISTRY = InputRegistry()
