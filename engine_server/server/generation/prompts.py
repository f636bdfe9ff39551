"""Tokenization of a client's prompts and messages; long ones in a thread, so that other streams go on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from engine_server.contract.wire.errors import ErrorCode
from engine_server.engine.input.segment_cache import Sharers
from engine_server.engine.loop.turns import Turns
from engine_server.modeling.platform.cpu_quota import available_cpus
from engine_server.requests.errors import InvalidRequestError
from engine_server.server.generation.answer_start import NO_START, AnswerStart
from engine_server.server.http.errors import ApiError

if TYPE_CHECKING:
    from engine_server.contract.base.caller import ReportedCaller
    from engine_server.engine.async_llm import AsyncLLMEngine
    from engine_server.engine.input.processor import Processor
    from engine_server.engine.input.prompt_times import PromptTimes
    from engine_server.requests.prompts import TokensPrompt

# In characters; longer texts take more than about 10 ms.
LONG_TEXT = 20_000
# The cost of a prompt, message or other item apart from its length, in characters that take the same time.
ITEM_OVERHEAD = 100

# Others than those of asyncio, in which small work of the server must not wait for long texts. They leave half of the
# cores to streams.
THREADS = Turns(max(1, available_cpus() // 2), "tokenize")

T = TypeVar("T")


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


PromptSource = TextSource | ChatSource


@dataclass(frozen=True, slots=True)
class PreparedPrompt:
    """A prompt as tokens, and the part of the answer that it ends with."""

    tokens: TokensPrompt
    start: AnswerStart = NO_START


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
        error.param = source.field
        raise
    return [finish_chat(chat, source) for chat in chats]


def finish_chat(chat: PreparedPrompt, source: PromptSource) -> PreparedPrompt:
    """Return a conversation's prompt, cut as the request asks. A cut of its end takes the answer's beginning away."""
    tokens = finish_prompt(chat.tokens, source)
    kept = tokens["prompt_token_ids"]
    ends_alike = chat.tokens["prompt_token_ids"][-len(kept) :] == kept
    return PreparedPrompt(tokens, chat.start if ends_alike else NO_START)


def finish_prompt(prompt: TokensPrompt, source: PromptSource) -> TokensPrompt:
    """Return the prompt, cut as the request asks, and with its cache salt."""
    for cut in source.cuts:
        prompt = cut_prompt(prompt, cut)
    return prompt if source.cache_salt is None else {**prompt, "cache_salt": source.cache_salt}


def cut_prompt(prompt: TokensPrompt, cut: Cut) -> TokensPrompt:
    """Return a prompt with as many tokens as allowed, and then without its text."""
    token_ids = prompt["prompt_token_ids"]
    surplus = len(token_ids) - cut.tokens
    if surplus <= 0:
        return prompt
    return {"prompt_token_ids": token_ids[surplus:] if cut.side == "left" else token_ids[: cut.tokens]}


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
) -> list[int]:
    """Return the tokens of a text. Raises ApiError 400 for a long one with more than `most_tokens`.

    sharers: who may find the tokens of its parts; None: nobody.
    """
    try:
        return processor.encode(text, most_tokens, add_special_tokens, sharers)
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
    `most_tokens` (None: any number).
    """
    processor = await engine.get_input_preprocessor()
    size = sum(chat.num_characters for chat in conversations)
    return await run_by_size(
        size,
        lambda: [render_chat(processor, chat, most_tokens, sharers, created) for chat in conversations],
        processor.times,
    )


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
    with processor.times.rendering():
        text, start = chat.render(processor.tokenizer, created)
    token_ids = encode(processor, text, most_tokens, chat.add_special_tokens, "messages", sharers)
    return PreparedPrompt({"prompt_token_ids": token_ids, "prompt": text}, start)


async def run_by_size(size: int, work: Callable[[], T], times: PromptTimes | None = None) -> T:
    """Run `work` at once, or in a thread, in turns, if its input has `LONG_TEXT` characters or more.

    times: takes the wait for the turn.
    """
    if size < LONG_TEXT:
        return work()
    asked = perf_counter()

    def run() -> T:
        if times is not None:
            times.add_wait(perf_counter() - asked)
        return work()

    return await THREADS.run(run, size)
