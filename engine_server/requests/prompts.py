"""The forms in which a prompt may be given."""

from typing import TYPE_CHECKING, NotRequired, TypedDict

from engine_server.requests.pictures import PromptPicture

if TYPE_CHECKING:
    from torch import Tensor


class Resumable(TypedDict):
    """Fields that every prompt of text or tokens may have.

    resume_token_ids: output of an earlier request. This request continues it as one generation: limits, penalties and
        counts include these tokens, and deltas start after them.
    cache_salt: prompts share cached blocks only with prompts of the same salt.
    """

    resume_token_ids: NotRequired[list[int]]
    cache_salt: NotRequired[str]


class TextPrompt(Resumable):
    """Text that the engine tokenizes."""

    prompt: str


class EncodedText(list[int]):
    """Token ids that the engine's own tokenizer made of a text: nobody need check their types. They don't change."""


class TokensPrompt(Resumable):
    """Token ids.

    prompt: the text to return with them.
    token_type_ids: for an encoder's two texts, 0 for each token of the first and 1 for each of the second.
    pictures: those that the prompt's placeholders stand for, in order.
    """

    prompt_token_ids: list[int]
    prompt: NotRequired[str]
    token_type_ids: NotRequired[list[int]]
    pictures: NotRequired[list[PromptPicture]]


class EmbedsPrompt(TypedDict):
    """Embeddings [tokens, hidden] in place of tokens, for an engine with enable_prompt_embeds."""

    prompt_embeds: "Tensor"


# A list of integers is a prompt of token ids.
PromptType = str | list[int] | TextPrompt | TokensPrompt | EmbedsPrompt


class InputRegistry:
    """A registry of input processors by model; only None is allowed, since there are no input processors."""


INPUT_REGISTRY = InputRegistry()
