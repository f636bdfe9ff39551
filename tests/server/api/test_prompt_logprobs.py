"""Log-probabilities of long prompts, which take many turns of the server's event loop."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from local_server import LocalServer

from engine_server.requests.logprobs import TokenLogprobs
from engine_server.server.api import openai_answer

LENGTH = 1000
FIELDS = {"model": "smollm2", "prompt": [5, 6] * (LENGTH // 2), "max_tokens": 1}


@pytest.mark.parametrize("fields", [{"prompt_logprobs": 25}, {"echo": True, "logprobs": 20}])
def test_log_probabilities_are_rendered_in_parts_with_turns_of_the_loop_between(
    scripted: LocalServer, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any]
) -> None:
    turn, ended = 0, False
    rendered: Counter[int] = Counter()
    render = openai_answer.prompt_logprobs

    async def count_turns() -> None:
        nonlocal turn
        while not ended:
            turn += 1
            await asyncio.sleep(0)

    def counted(positions: Sequence[TokenLogprobs | None]) -> Any:
        if not rendered:
            counting.append(asyncio.ensure_future(count_turns()))
        rendered[turn] += sum(len(position or ()) for position in positions)
        return render(positions)

    counting: list[asyncio.Future[None]] = []
    monkeypatch.setattr(openai_answer, "prompt_logprobs", counted)
    answer = scripted.post("/v1/completions", {**FIELDS, **fields})
    ended = True
    assert answer.status == 200
    (choice,) = answer.json["choices"]
    first, *others = choice["prompt_logprobs"]
    assert first is None and ["5" in found or "6" in found for found in others] == [True] * (LENGTH - 1)
    assert max(rendered.values()) <= openai_answer.PER_TURN < sum(rendered.values()) / 4
    if "echo" in fields:
        columns = choice["logprobs"]
        assert {len(column) for column in columns.values()} == {LENGTH + 1}
        assert columns["text_offset"] == sorted(columns["text_offset"])
