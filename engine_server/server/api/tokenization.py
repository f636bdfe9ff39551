"""POST /tokenize and /detokenize, and GET /tokenizer_info."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from fastapi import APIRouter, Request
from pydantic import AfterValidator, BeforeValidator, Field
from starlette.responses import JSONResponse, Response

from engine_server.contract.base.bounds import DETOKENIZED_TOKENS, TOKENIZED_BYTES, TOKENIZED_TOKENS
from engine_server.contract.wire.errors import ErrorCode
from engine_server.engine.input.segment_cache import Sharers
from engine_server.server.api import openapi
from engine_server.server.api.chat.input import ChatInput
from engine_server.server.api.chat.tools import Tools, tool_use, tools_by_path
from engine_server.server.api.content import MediaUse, media_of
from engine_server.server.api.context import router_head
from engine_server.server.api.fields import Items, check_bound, whole_numbers
from engine_server.server.api.generation_request import ApiRequest, parse_request
from engine_server.server.api.ignored import IgnoredPart, ignored_tools
from engine_server.server.api.models import served_model
from engine_server.server.api.openai_answer import tokenizer_response
from engine_server.server.api.read_request import refuse_ignored
from engine_server.server.api.tokenizer import require_tokenizer
from engine_server.server.conversation.chat_prompt import ChatPrompt, chat_prompt
from engine_server.server.generation.prompts import encode, tokenize_chat
from engine_server.server.generation.threads import run_by_size
from engine_server.server.http.errors import ApiError
from engine_server.server.http.request_body import read_body

if TYPE_CHECKING:
    from engine_server.server.engine_host import EngineHost
    from engine_server.server.loaded_model import LoadedModel

# In items of a list.
JSON_PART = 1 << 14
# Settings of a tokenizer that are no properties of the model: where and with which rights its files were read.
PRIVATE_SETTINGS = {"name_or_path", "local_files_only", "trust_remote_code", "token", "cache_dir", "revision"}


def check_bytes(text: str) -> str:
    check_bound(TOKENIZED_BYTES, len(text.encode()))
    return text


class TokenizeRequest(ChatInput):
    """The body of a request for the tokens of a text, or of a conversation."""

    model: str | None = None
    prompt: Annotated[str, AfterValidator(check_bytes)] | None = None
    return_token_strs: bool | None = None
    tools: Tools | None = None

    def check_combinations(self) -> None:
        super().check_combinations()
        if self.prompt is None and self.messages is None:
            raise ApiError(ErrorCode.MISSING_FIELD, "prompt is missing", param="prompt")
        if self.prompt is not None and self.messages is not None:
            raise ApiError(
                ErrorCode.INVALID_VALUE, "prompt and messages exclude each other", param="messages"
            )

    @property
    def ignored_tools(self) -> Sequence[IgnoredPart]:
        return ignored_tools(self.tools or ())

    @cached_property
    def media(self) -> Sequence[MediaUse]:
        return media_of(self.turns)


class Tokens(msgspec.Struct):
    """The tokens of a prompt."""

    count: int
    max_model_len: int
    # Lists.
    tokens: msgspec.Raw
    token_strs: msgspec.Raw | None


class DetokenizeRequest(ApiRequest):
    """The body of a request for the text of tokens."""

    model: str | None = None
    tokens: Annotated[
        Items[Annotated[int, Field(ge=0)]],
        Field(max_length=DETOKENIZED_TOKENS.limit),
        BeforeValidator(whole_numbers),
    ]


class Detokenized(msgspec.Struct):
    """The text of tokens, special tokens included."""

    prompt: str


def routes(host: EngineHost) -> APIRouter:
    router = APIRouter()

    @router.post("/tokenize", response_model=None)
    @openapi.body(TokenizeRequest, Tokens)
    async def post_tokenize(request: Request) -> Response:
        body = parse_request(TokenizeRequest, await read_body(request), host.model.takes_pictures)
        router = router_head(request.headers)
        served_model(host.model, body.model, router)
        sharers = Sharers(router.caller.scope if router.caller else None)
        return tokenizer_response(await tokenize(host.model, body, sharers))

    @router.post("/detokenize", response_model=None)
    @openapi.body(DetokenizeRequest, Detokenized)
    async def post_detokenize(request: Request) -> Response:
        body = parse_request(DetokenizeRequest, await request.body())
        served_model(host.model, body.model, router_head(request.headers))
        return tokenizer_response(await detokenize(host.model, body))

    if host.settings.enable_tokenizer_info_endpoint:

        @router.get("/tokenizer_info", response_model=None)
        async def get_tokenizer_info() -> Response:
            return JSONResponse(public_settings(require_tokenizer(host.model)))

    return router


async def tokenize(model: LoadedModel, request: TokenizeRequest, sharers: Sharers) -> Tokens:
    tokenizer = require_tokenizer(model)
    prompt, special = request.prompt, request.add_special_tokens is not False
    if prompt is None:
        chat = requested_chat(model, request)
        tokens = await tokenize_chat(model.engine, chat, model.max_model_len, sharers)
        token_ids = tokens["prompt_token_ids"]
    else:
        processor, most = await model.engine.get_input_preprocessor(), TOKENIZED_TOKENS.limit
        token_ids = await run_by_size(
            len(prompt), lambda: encode(processor, prompt, most, special, "prompt", sharers)
        )

    def report() -> Tokens:
        names = tokenizer.convert_ids_to_tokens(token_ids) if request.return_token_strs else None
        return Tokens(
            len(token_ids),
            model.max_model_len,
            json_list(token_ids),
            None if names is None else json_list(names),
        )

    return await run_by_size(len(token_ids), report)


def json_list(items: Sequence[int] | Sequence[str]) -> msgspec.Raw:
    """Return a list as JSON. It is encoded in parts, since other threads wait for each."""
    parts = [items[start : start + JSON_PART] for start in range(0, len(items), JSON_PART)]
    return msgspec.Raw(b"[" + b",".join(msgspec.json.encode(part)[1:-1] for part in parts) + b"]")


def requested_chat(model: LoadedModel, request: TokenizeRequest) -> ChatPrompt:
    """Return the conversation as the chat API renders it. Raises ApiError 400 for what the chat API refuses."""
    refuse_ignored(model, request.ignored_tools, request.media)
    use = tool_use(tools_by_path(request.tools or ()), None, None)
    return chat_prompt(request.conversation(model.settings, open_answer=True), model.answer_layout, use)


async def detokenize(model: LoadedModel, request: DetokenizeRequest) -> Detokenized:
    size = model.engine.model_config.vocab_size
    if request.tokens and max(request.tokens) >= size:
        message = f"tokens has {max(request.tokens)}; tokens are integers from 0 to {size - 1}"
        raise ApiError(ErrorCode.INVALID_VALUE, message, param="tokens")
    tokenizer = require_tokenizer(model)
    return Detokenized(await run_by_size(len(request.tokens), lambda: decode(tokenizer, request.tokens)))


def decode(tokenizer: Any, token_ids: list[int]) -> str:
    """Return the text of tokens, special tokens included. Other threads run meanwhile, unlike in `decode` itself."""
    text: str
    (text,) = tokenizer.backend_tokenizer.decode_batch([token_ids], skip_special_tokens=False)
    return tokenizer.clean_up_tokenization(text) if tokenizer.clean_up_tokenization_spaces else text


def public_settings(tokenizer: Any) -> dict[str, Any]:
    """Return the settings in a tokenizer's tokenizer_config.json, without paths."""
    settings = {
        name: value
        for name, value in tokenizer.init_kwargs.items()
        if name not in PRIVATE_SETTINGS and not name.endswith("_file")
    }
    settings |= {"tokenizer_class": type(tokenizer).__name__, "chat_template": tokenizer.chat_template}
    return {name: plain(value) for name, value in settings.items()}


def plain(value: Any) -> Any:
    """Return a value as JSON knows it; a special token is its text."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value if isinstance(value, str | int | float | None) else getattr(value, "content", str(value))
