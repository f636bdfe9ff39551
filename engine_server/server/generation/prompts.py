"""Tokenization of a client's prompts and messages; long ones in a thread, so that other streams go on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self

from engine_server.contract.wire.errors import ErrorCode
from engine_server.engine.input.placeholders import ProcessedPrompt, cut_prompt
from engine_server.engine.input.segment_cache import Sharers
from engine_server.requests.errors import InvalidRequestError
from engine_server.server.generation.answer_start import NO_START, AnswerStart
from engine_server.server.generation.pictures import PlacedPicture, known_pictures, start_pictures
from engine_server.server.generation.threads import run_by_size
from engine_server.server.http.errors import ApiError

if TYPE_CHECKING:
    from engine_server.contract.base.caller import ReportedCaller
    from engine_server.engine.async_llm import AsyncLLMEngine
    from engine_server.engine.input.media_input import MediaInput
    from engine_server.engine.input.media_marks import MediaMarks
    from engine_server.engine.input.placeholders import KnownPicture
    from engine_server.engine.input.processor import Processor
    from engine_server.requests.prompts import TokensPrompt

# The cost of a prompt, message or other item apart from its length, in characters that take the same time.
ITEM_OVERHEAD = 100


@dataclass(frozen=True, slots=True)
class Cut:
    """A limit of a prompt's tokens: those at `side` go first."""

    tokens: int
    side: Literal["left", "right"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TextSource:
    """Prompts that are texts or token ids."""

    texts: Sequence[str | list[int]]
    add_special_tokens: bool = True
    # The answer repeats the prompts: those given as token ids get a text.
    repeated: bool = False
    # Of each text; None: they are cut afterwards, so that any text fits.
    most_tokens: int | None
    cuts: Sequence[Cut] = ()
    cache_salt: str | None = None

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def lost(self) -> Sequence[tuple[str, str]]:
        return ()

    @property
    def pictures(self) -> Sequence[PlacedPicture]:
        return ()


class Chat(Protocol):
    """A conversation that a chat template renders."""

    @property
    def add_special_tokens(self) -> bool:
        """Add special tokens to those that the template writes itself."""

    @property
    def num_characters(self) -> int:
        """About how many characters the template renders."""

    @property
    def lost(self) -> Sequence[tuple[str, str]]:
        """The path in the body and the type of each part that the template doesn't print."""

    @property
    def pictures(self) -> Sequence[PlacedPicture]:
        """The pictures, in the order in which the template prints them."""

    def marked(self, marks: MediaMarks) -> Self:
        """Return the conversation with marks in all that the template is given."""

    def render(self, tokenizer: Any, created: int | None) -> tuple[str, AnswerStart]:
        """Return the prompt and the part of the answer that it ends with. Raises ApiError 400.

        created: the time for the template, in seconds since the epoch; None: now.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatSource:
    """Prompts that are conversations."""

    conversations: Sequence[Chat]
    # The client's field of the messages.
    field: str
    # As of a TextSource.
    most_tokens: int | None
    cuts: Sequence[Cut] = ()
    cache_salt: str | None = None

    def __len__(self) -> int:
        return len(self.conversations)

    @property
    def lost(self) -> Sequence[tuple[str, str]]:
        """The path and the type of each part that is not in the prompts."""
        return [part for chat in self.conversations for part in chat.lost]

    @property
    def pictures(self) -> Sequence[PlacedPicture]:
        """The pictures of the prompts, in their order."""
        return [picture for chat in self.conversations for picture in chat.pictures]


PromptSource = TextSource | ChatSource


@dataclass(frozen=True, slots=True)
class PreparedPrompt:
    """A prompt as tokens, and the part of the answer that it ends with."""

    tokens: TokensPrompt
    start: AnswerStart = NO_START
    # The places of the tokens of each picture.
    extents: Sequence[range] = ()


async def tokenize(
    engine: AsyncLLMEngine, source: PromptSource, caller: ReportedCaller | None, created: int | None = None
) -> list[PreparedPrompt]:
    """Return the prompts of a request as tokens. Raises ApiError 400 for a text that can't fit the context.

    caller: of the request. created: the time for chat templates, in seconds since the epoch; None: now.
    """
    sharers = Sharers(caller.scope if caller else None, source.cache_salt)
    if isinstance(source, TextSource):
        tokenized = await tokenize_prompts(
            engine, source.texts, source.most_tokens, source.add_special_tokens, sharers
        )
        prompts = [finish_prompt(prompt, source) for prompt in tokenized]
        if source.repeated:
            prompts = await decode_prompts(engine, prompts)
        return [PreparedPrompt(prompt) for prompt in prompts]
    try:
        chats = await tokenize_chats(engine, source.conversations, source.most_tokens, sharers, created)
    except ApiError as error:
        if error.param is None or not error.param.startswith(f"{source.field}."):
            error.param = source.field
        raise
    return [finish_chat(chat, source) for chat in chats]


def finish_chat(chat: PreparedPrompt, source: PromptSource) -> PreparedPrompt:
    """Return a conversation's prompt, cut as the request asks. A cut of its end takes the answer's beginning away."""
    tokens = finish_prompt(chat.tokens, source, chat.extents)
    kept = tokens["prompt_token_ids"]
    ends_alike = chat.tokens["prompt_token_ids"][-len(kept) :] == kept
    return PreparedPrompt(tokens, chat.start if ends_alike else NO_START)


def finish_prompt(prompt: TokensPrompt, source: PromptSource, extents: Sequence[range] = ()) -> TokensPrompt:
    """Return the prompt with its cache salt, cut as the request asks, and then without its text."""
    whole = ProcessedPrompt(prompt["prompt_token_ids"], prompt.get("pictures", []), list(extents))
    kept = whole
    for cut in source.cuts:
        kept = cut_prompt(kept, cut.tokens, cut.side)
    if kept is not whole:
        prompt = {"prompt_token_ids": kept.token_ids}
        if kept.pictures:
            prompt["pictures"] = kept.pictures
    return prompt if source.cache_salt is None else {**prompt, "cache_salt": source.cache_salt}


async def tokenize_prompts(
    engine: AsyncLLMEngine,
    prompts: Sequence[str | list[int]],
    most_tokens: int | None,
    add_special_tokens: bool,
    sharers: Sharers,
) -> list[TokensPrompt]:
    """Tokenize texts. Raises ApiError 400 for a long one with more than `most_tokens`; None: any number."""
    processor = await engine.get_input_preprocessor()

    def tokenize(prompt: str | list[int]) -> TokensPrompt:
        if isinstance(prompt, list):
            return {"prompt_token_ids": prompt}
        token_ids = encode(processor, prompt, most_tokens, add_special_tokens, "prompt", sharers)
        return {"prompt_token_ids": token_ids, "prompt": prompt}

    size = sum(len(prompt) + ITEM_OVERHEAD for prompt in prompts if isinstance(prompt, str))
    return await run_by_size(size, lambda: [tokenize(prompt) for prompt in prompts], processor.times)


async def decode_prompts(engine: AsyncLLMEngine, prompts: Sequence[TokensPrompt]) -> list[TokensPrompt]:
    """Return prompts with their text, decoded from their tokens where they have none."""
    tokenizer = await engine.get_tokenizer()
    model = engine.model_config

    def decode(prompt: TokensPrompt) -> TokensPrompt:
        token_ids = prompt["prompt_token_ids"]
        if "prompt" in prompt or not 0 < len(token_ids) <= model.max_model_len:
            return prompt
        if min(token_ids) < 0 or max(token_ids) >= model.vocab_size:
            return prompt  # the engine refuses it
        return {**prompt, "prompt": str(tokenizer.decode(token_ids))}

    size = sum(len(prompt["prompt_token_ids"]) for prompt in prompts)
    return await run_by_size(size, lambda: [decode(prompt) for prompt in prompts])


def encode(
    processor: Processor,
    text: str,
    most_tokens: int | None,
    add_special_tokens: bool,
    param: str,
    sharers: Sharers | None,
    marks: MediaMarks | None = None,
) -> list[int]:
    """Return the tokens of a text. Raises ApiError 400 for a long one with more than `most_tokens`.

    sharers: who may find the tokens of its parts; None: nobody. marks: those in a text that a chat template rendered.
    """
    try:
        if marks is None:
            return processor.encode_text(text, most_tokens, add_special_tokens, sharers)
        return processor.encode_marked(text, marks, most_tokens, add_special_tokens, sharers)
    except InvalidRequestError as error:
        message = str(error) if param == "prompt" else f"{param}: {error}"
        raise ApiError(ErrorCode.INVALID_VALUE, message, param=param) from None


async def tokenize_chat(
    engine: AsyncLLMEngine, chat: Chat, most_tokens: int | None, sharers: Sharers | None = None
) -> TokensPrompt:
    """Do the same for one conversation as `tokenize_chats` does for several."""
    (prepared,) = await tokenize_chats(engine, [chat], most_tokens, sharers)
    return prepared.tokens


async def tokenize_chats(
    engine: AsyncLLMEngine,
    conversations: Sequence[Chat],
    most_tokens: int | None,
    sharers: Sharers | None,
    created: int | None = None,
) -> list[PreparedPrompt]:
    """Render the chat template for each conversation, and tokenize the result.

    sharers: who may find the tokens of its parts; None: nobody. created: the time for the template, in seconds since
    the epoch; None: now. Raises ApiError 400 for messages that the template refuses, or that have more than
    `most_tokens` (None: any number), and for a wrong picture.
    """
    processor = await engine.get_input_preprocessor()
    size = sum(chat.num_characters for chat in conversations)

    async def render() -> list[PreparedPrompt]:
        return await run_by_size(
            size,
            lambda: [render_chat(processor, chat, most_tokens, sharers, created) for chat in conversations],
            processor.times,
        )

    pictures = [picture for chat in conversations for picture in chat.pictures]
    if not pictures or processor.media is None:
        return await render()
    with await start_pictures(
        processor.media.pictures, pictures, engine.model_config.max_pictures
    ) as pending:
        prompts = await render()
        known = iter(await known_pictures(pending, pictures))
    return [
        with_placeholders(processor.media, prompt, list(islice(known, len(chat.pictures))))
        for chat, prompt in zip(conversations, prompts, strict=True)
    ]


def with_placeholders(
    media: MediaInput, prompt: PreparedPrompt, pictures: Sequence[KnownPicture]
) -> PreparedPrompt:
    """Return a prompt with the tokens of its pictures. Raises ApiError 400 if the template doesn't print them all."""
    try:
        whole = media.with_placeholders(prompt.tokens["prompt_token_ids"], pictures)
    except InvalidRequestError as error:
        raise ApiError(ErrorCode.INVALID_VALUE, str(error)) from None
    tokens: TokensPrompt = {**prompt.tokens, "prompt_token_ids": whole.token_ids}
    if whole.pictures:
        tokens["pictures"] = whole.pictures
    return PreparedPrompt(tokens, prompt.start, whole.extents)


def num_characters(value: object) -> int:
    """Return about how many characters a template renders for a value of JSON's types."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return ITEM_OVERHEAD + sum(len(str(key)) + num_characters(item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return ITEM_OVERHEAD + sum(num_characters(item) for item in value)
    return 1


def render_chat(
    processor: Processor,
    chat: Chat,
    most_tokens: int | None,
    sharers: Sharers | None,
    created: int | None,
) -> PreparedPrompt:
    marks = None if processor.media is None else processor.media.new_marks()
    with processor.times.rendering():
        text, start = (chat if marks is None else chat.marked(marks)).render(processor.tokenizer, created)
    token_ids = encode(processor, text, most_tokens, chat.add_special_tokens, "messages", sharers, marks)
    if marks is not None:
        text = marks.restored(text)
        start = AnswerStart(marks.restored(start.opening), marks.restored(start.prefill))
    return PreparedPrompt({"prompt_token_ids": token_ids, "prompt": text}, start)
