"""Requests to the measured server, and the times of their answers."""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from engine_server.bench.apis import APIS, Api
from engine_server.bench.load import Load

HIDDEN = "***"
LONGEST_ERROR = 200


@dataclass(slots=True)
class Answer:
    """One request's times, in seconds, and its numbers of tokens as the server reports them."""

    sent: float
    # The arrival of each event with text or reasoning.
    arrivals: list[float] = field(default_factory=list)
    prompt_tokens: int = 0
    # Tokens of the prompt that the server had in its prefix cache; 0 if it doesn't report them.
    cached_tokens: int = 0
    output_tokens: int = 0
    text: str = ""
    error: str = ""

    @property
    def first(self) -> float:
        return self.arrivals[0] - self.sent

    @property
    def gaps(self) -> list[float]:
        return [later - earlier for earlier, later in zip(self.arrivals, self.arrivals[1:], strict=False)]


class Client:
    """Sends the requests of a load."""

    def __init__(self, session: aiohttp.ClientSession, load: Load, api_key: str = "") -> None:
        """api_key: sent with each request, and shown nowhere; empty: none is sent."""
        self._session = session
        self._load = load
        self._api = APIS[load.api]
        self._api_key = api_key
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}

    async def ask(self, turns: Sequence[str]) -> Answer:
        """Request a streamed answer of `output_tokens` tokens, exactly if the server knows ignore_eos.

        turns: the conversation so far, texts and their answers in turn.
        """
        answer = Answer(time.perf_counter())
        try:
            await self._stream(turns, answer)
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            answer.error = f"{type(error).__name__}: {error}"
        if not answer.error and not answer.arrivals:
            answer.error = "the stream ended without a token"
        if self._api_key:
            # Some servers repeat a wrong key.
            answer.error = answer.error.replace(self._api_key, HIDDEN)
        answer.error = answer.error[:LONGEST_ERROR]
        return answer

    async def _stream(self, turns: Sequence[str], answer: Answer) -> None:
        load, api = self._load, self._api
        body = {
            "model": load.model,
            **api.prompt(turns),
            "max_tokens": load.output_tokens,
            "temperature": 0,
            **({"ignore_eos": True} if load.ignore_eos else {}),
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        async with self._session.post(load.base_url + api.path, json=body, headers=self._headers) as response:
            if response.status != 200:
                answer.error = f"{response.status}: {await response.text()}"
                return
            async for raw in response.content:
                if raw.startswith(b"data: {"):
                    record(answer, api, json.loads(raw[6:]))


def record(answer: Answer, api: Api, event: dict[str, Any]) -> None:
    """Add an event of the stream to the answer."""
    if "error" in event:
        answer.error = str(event["error"])
    choices = event.get("choices") or ()
    text = "".join(map(api.text, choices))
    if text or any(map(api.reasoning, choices)):
        answer.arrivals.append(time.perf_counter())
    answer.text += text
    if usage := event.get("usage"):
        answer.prompt_tokens = usage.get("prompt_tokens") or 0
        answer.output_tokens = usage.get("completion_tokens") or 0
        answer.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
