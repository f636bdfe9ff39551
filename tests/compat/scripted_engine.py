"""The engine server's real applications, with a few scripted tokens in place of a model."""

import asyncio
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from compat.http_text import HttpMessage, parse_message
from compat.sample import ADAPTER, ADAPTER_URI, KEY
from waiting import until_async

from engine_server.config.start_facts import TEXT_ALONE
from engine_server.engine.engine_args import AsyncEngineArgs
from engine_server.engine.input.prompt_times import PromptTimes
from engine_server.engine.loop.async_stream import AsyncStream
from engine_server.engine.output.token_texts import TokenTexts
from engine_server.requests.adapters import LoRARequest
from engine_server.requests.errors import InvalidRequestError, QueueFullError
from engine_server.requests.outputs import CompletionOutput, RequestOutput
from engine_server.requests.sampling_params import RequestOutputKind, SamplingParams
from engine_server.requests.scheduler_stats import SchedulerStats
from engine_server.requests.submission import Submission
from engine_server.server.adapters import ServedAdapter, ServedAdapters
from engine_server.server.application import admin_application, build_application
from engine_server.server.arguments import ServerArgs
from engine_server.server.engine_host import EngineHost
from engine_server.server.http.api_keys import ApiKeys
from engine_server.server.http.chunks import CHUNKS
from engine_server.server.http.disconnect import DISCONNECT, WhileConnected
from engine_server.server.loaded_model import LoadedModel
from engine_server.server.settings import ApiSettings
from engine_server.server.wanted_adapters import AdapterSet

# The tokens of every answer, by id.
TEXTS = {11: "Ahoy", 12: ", ", 13: "matey"}
FINGERPRINT = "0123456789abcdef0123456789abcdef"
STREAM_SETTINGS = "fedcba9876543210fedcba9876543210"
MISSING_URI = "hf://org/missing"


class ScriptedStream(AsyncStream):
    """Has all outputs from the start on, and gives one at a time."""

    def __init__(self, outputs: Iterable[RequestOutput]) -> None:
        super().__init__(RequestOutputKind.DELTA)
        self.outputs = deque(outputs)

    def take(self) -> RequestOutput | None:
        if self.outputs:
            self.changed.set()
        return self.outputs.popleft() if self.outputs else None


class ScriptedEngine:
    """Answers each prompt by `TEXTS`, and keeps the requests."""

    model_config = SimpleNamespace(max_model_len=2048, vocab_size=100)
    errored = False

    def __init__(self) -> None:
        self.is_full = False
        # "stop", or an error that ends answers after the first token.
        self.finish_reason = "stop"
        self.requests: list[SimpleNamespace] = []

    def check_room(self, count: int = 1) -> None:
        if self.is_full:
            raise QueueFullError("8 requests wait; no more are queued")

    async def check_health(self) -> None:
        """Be healthy."""

    async def get_input_preprocessor(self) -> Any:
        """Return what takes the times of prompts, all of which are tokens."""
        return SimpleNamespace(times=PromptTimes(), media=None)

    async def abort(self, request_ids: list[str]) -> None:
        """Nothing runs."""

    async def submit(self, submission: Submission) -> ScriptedStream:
        request_id, prompt, params = submission.request_id, cast(Any, submission.prompt), submission.params
        assert isinstance(params, SamplingParams)
        lora = submission.origin.lora_request
        self.requests.append(SimpleNamespace(prompt=prompt, params=params, lora=lora))
        resumed = prompt.get("resume_token_ids", [])
        tokens = list(TEXTS)[len(resumed) :]
        if params.output_kind is RequestOutputKind.FINAL_ONLY:
            pieces = [("".join(TEXTS.values()), tokens)]
        elif self.finish_reason != "stop":
            pieces = [(TEXTS[tokens[0]], tokens[:1]), ("", [])]
        else:
            pieces = [(TEXTS[token], [token]) for token in tokens]
        completions = [CompletionOutput(0, text, token_ids) for text, token_ids in pieces]
        completions[0].resumed_text = [TEXTS[token] for token in resumed]
        completions[-1].finish_reason = self.finish_reason
        return ScriptedStream(
            RequestOutput(
                request_id, None, prompt["prompt_token_ids"], outputs=[one], finished=one is completions[-1]
            )
            for one in completions
        )


class ScriptedAdapters(ServedAdapters):
    """Loads adapters without files."""

    def __init__(self) -> None:
        self.loaded: dict[str, ServedAdapter] = {}

    @property
    def names(self) -> list[str]:
        return list(self.loaded)

    def get(self, name: str) -> ServedAdapter | None:
        return self.loaded.get(name)

    async def load(self, name: str, uri: str, replace: bool = False) -> None:
        if uri == MISSING_URI:
            raise InvalidRequestError(f"{uri}: there is no such repository", "lora_path")
        self.loaded[name] = ServedAdapter(uri, LoRARequest(name, 1, f"/{name}"), None, f"hash of {uri}")


class ScriptedHost(EngineHost):
    """A loaded engine that serves the sample deployment and its adapter."""

    def __init__(self) -> None:
        super().__init__(AsyncEngineArgs(model="model"), ApiSettings(), 0.0)
        self.phase = None
        self.phase_seconds = {"import": 1.5, "load": 12.25, "warm up": 3.0}
        self.engine_load.max_num_seqs = 8
        self.engine_load.record(SchedulerStats(num_running=2, num_waiting=1, kv_cache_usage=0.25), None)
        self.scripted, adapters = ScriptedEngine(), ScriptedAdapters()
        self._model = LoadedModel(
            engine=cast(Any, self.scripted),
            settings=self.settings,
            adapters=adapters,
            adapter_set=AdapterSet(adapters),
            served_names=[str(KEY)],
            max_model_len=2048,
            tasks=("generate",),
            sampling_defaults={},
            fingerprint=FINGERPRINT,
            stream_settings=STREAM_SETTINGS,
            tokenizer=None,
            layout=None,
            refuses_pictures=TEXT_ALONE,
            token_bytes=(),
            token_texts=TokenTexts(),
            traces=False,
            commit="c" * 40,
        )


class EngineServer:
    """Both applications of one engine. Without key files they ask for no keys."""

    def __init__(self, key_file: Path | None = None, admin_key_file: Path | None = None) -> None:
        self.host = ScriptedHost()
        self.app, self.gate = build_application(self.host, ServerArgs(), ApiKeys((), key_file))
        self.admin = admin_application(self.host, ApiKeys((), admin_key_file))

    def ask(self, request: bytes) -> bytes:
        """Return the answer of the API."""

        async def ask() -> bytes:
            await self.host.model.adapters.load(ADAPTER, ADAPTER_URI, replace=True)
            return await call(self.app, request)

        return asyncio.run(ask())

    def ask_admin(self, request: bytes) -> tuple[bytes, bytes]:
        """Return the answer of the admin API, and that to GET /adapters once they are loaded."""

        async def ask() -> tuple[bytes, bytes]:
            first = await call(self.admin, request)
            await until_async(
                lambda: all(each.state != "loading" for each in self.host.model.adapter_set.states().adapters)
            )
            question = parse_message(request)._replace(first_line=b"GET /adapters HTTP/1.1", body=b"")
            return first, await call(self.admin, question.encode())

        return asyncio.run(ask())


class Writer:
    """Keeps the pieces of a streamed answer, in place of a connection."""

    is_free = True
    written_at = 0.0

    def __init__(self, sent: list[dict[str, Any]]) -> None:
        self._sent = sent

    async def write(self, chunk: bytes) -> None:
        self.write_now(chunk)

    def write_now(self, chunk: bytes) -> None:
        self._sent.append({"body": chunk})


async def call(app: Any, request: bytes) -> bytes:
    """Return an application's whole answer to the bytes of a request."""
    message = parse_message(request)
    method, path, _ = message.first_line.split()
    received = iter([{"type": "http.request", "body": message.body, "more_body": False}])
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        for first in received:
            return first
        never: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        return await never  # the client stays

    async def send(part: Any) -> None:
        sent.append(part)

    scope = {
        "type": "http",
        "method": method.decode(),
        "path": path.decode(),
        "query_string": b"",
        "headers": [(name.lower(), value) for name, value in message.headers],
        "extensions": {CHUNKS: {"writer": Writer(sent)}, DISCONNECT: {"while_connected": WhileConnected()}},
    }
    await app(scope, receive, send)
    body = b"".join(part.get("body", b"") for part in sent[1:])
    return HttpMessage(b"HTTP/1.1 %d" % sent[0]["status"], sent[0]["headers"], body).encode()
