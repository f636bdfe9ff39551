"""Log-probabilities of long prompts, which take many turns of the server's event loop."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import pytest
from local_server import LocalServer
from streams import events, joined

from engine_server.server.api import completion_logprobs, openai_answer

LENGTH = 1000
FIELDS = {"model": "smollm2", "prompt": [5, 6] * (LENGTH // 2), "max_tokens": 1}


class Turns:
    """Counts the log-probabilities that are rendered in each turn of the server's event loop."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.monkeypatch = monkeypatch
        self.rendered: Counter[int] = Counter()
        self.turn = 0
        self.ended = False
        self.counting: asyncio.Future[None] | None = None

    def watch(self, module: ModuleType, function: str, size: Callable[[Any], int]) -> None:
        """Count what a function renders; its first argument is a list, whose items have so many."""
        render = getattr(module, function)

        def counted(items: Sequence[Any], *others: Any) -> Any:
            if self.counting is None:
                self.counting = asyncio.ensure_future(self._count())
            self.rendered[self.turn] += sum(map(size, items))
            return render(items, *others)

        self.monkeypatch.setattr(module, function, counted)

    async def _count(self) -> None:
        while not self.ended:
            self.turn += 1
            await asyncio.sleep(0)

    def check(self) -> None:
        assert max(self.rendered.values()) <= openai_answer.PER_TURN < sum(self.rendered.values()) / 4


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> Turns:
    return Turns(monkeypatch)


@pytest.mark.parametrize("fields", [{"prompt_logprobs": 25}, {"echo": True, "logprobs": 20}])
def test_log_probabilities_are_rendered_in_parts_with_turns_of_the_loop_between(
    scripted: LocalServer, turns: Turns, fields: dict[str, Any]
) -> None:
    turns.watch(openai_answer, "prompt_logprobs", lambda position: len(position or ()))
    answer = scripted.post("/v1/completions", {**FIELDS, **fields})
    turns.ended = True
    assert answer.status == 200
    (choice,) = answer.json["choices"]
    first, *others = choice["prompt_logprobs"]
    assert first is None and ["5" in found or "6" in found for found in others] == [True] * (LENGTH - 1)
    turns.check()
    if "echo" in fields:
        columns = choice["logprobs"]
        assert {len(column) for column in columns.values()} == {LENGTH + 1}
        assert columns["text_offset"] == sorted(columns["text_offset"])


@pytest.mark.parametrize("max_tokens", [0, 1, 3])
def test_log_probabilities_of_an_echoed_prompt_are_streamed_after_turns_of_the_loop(
    scripted: LocalServer, turns: Turns, max_tokens: int
) -> None:
    request = {**FIELDS, "max_tokens": max_tokens, "echo": True, "logprobs": 20}
    (whole,) = scripted.post("/v1/completions", request).json["choices"]
    turns.watch(completion_logprobs, "to_logprobs", lambda token: len(token[1]))
    answer = scripted.post("/v1/completions", {**request, "stream": True})
    turns.ended = True
    (streamed,) = joined(events(answer.body))["choices"]
    assert streamed["logprobs"] == whole["logprobs"]
    assert len(streamed["logprobs"]["tokens"]) == LENGTH + max_tokens
    turns.check()
