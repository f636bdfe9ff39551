"""The forms in which a prompt may come."""

from typing import TYPE_CHECKING, NotRequired, TypedDict

if TYPE_CHECKING:
    from torch import Tensor


class Resumable(TypedDict):
    """`resume_token_ids`: output that was produced already. The request continues after it as if it had never
    stopped: limits, penalties and counts include it, deltas begin behind it.
    `cache_salt`: only prompts with the same one share what is cached."""

    resume_token_ids: NotRequired[list[int]]
    cache_salt: NotRequired[str]


class TextPrompt(Resumable):
    """Text, tokenised by the engine."""

    prompt: str


class TokensPrompt(Resumable):
    """Token ids as they are; `prompt` is the text to show beside them, if any."""

    prompt_token_ids: list[int]
    prompt: NotRequired[str]
    token_type_ids: NotRequired[
        list[int]
    ]  # of two texts for an encoder: 0 for each token of the first, 1 of the second


class EmbedsPrompt(TypedDict):
    """What stands for the tokens' embeddings: [tokens, hidden]. The engine must be made with enable_prompt_embeds."""

    prompt_embeds: "Tensor"


PromptType = str | TextPrompt | TokensPrompt | EmbedsPrompt


class InputRegistry:
    """Where models would register how their inputs are processed; every prompt here is tokens."""


INPUT_REGISTRY = InputRegistry()
