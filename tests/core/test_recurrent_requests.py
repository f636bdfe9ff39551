"""Many requests of all kinds to a model with recurrent layers, with few blocks and few states."""

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from recurrent_models import PROMPTS, ask, check_free, check_greedy, save_recurrent, start


@pytest.mark.parametrize(
    ("count", "ranks"),
    [
        pytest.param(300, 1, marks=pytest.mark.more),
        pytest.param(10_000, 1, marks=pytest.mark.thorough),
        pytest.param(10_000, 2, marks=pytest.mark.thorough),
    ],
)
def test_mixed_requests_all_end_and_free_their_blocks_and_states(
    count: int, ranks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = save_recurrent("Qwen3_5ForCausalLM", tmp_path)
    engine = start(
        tmp_path, max_num_seqs=6, num_state_slots=9, max_num_batched_tokens=24, num_gpu_blocks_override=30,
        tensor_parallel_size=ranks, device="cpu",
    )  # fmt: skip
    executor, choices = engine._core.executor, random.Random(count)
    compute = executor.forward

    def fails_at_times(*given: Any, **options: Any) -> Any:
        if ranks == 1 and choices.random() < 0.01:  # several ranks end with a step that fails
            raise RuntimeError("a step that fails")
        return compute(*given, **options)

    monkeypatch.setattr(executor, "forward", fails_at_times)
    running: dict[str, list[int]] = {}
    ended: Counter[str] = Counter()
    for number in range(count):
        beginning = PROMPTS[choices.randrange(len(PROMPTS))]
        prompt = [*beginning, *choices.choices(range(2, 60), k=choices.randrange(1, 30))]
        running[str(number)] = prompt
        ask(engine, str(number), prompt, max_tokens=choices.randrange(1, 20), n=choices.choice([1, 1, 2]))
        if choices.random() < 0.05:
            gone = choices.choice(list(running))
            engine.abort_request([gone])
            del running[gone]
            ended["abort"] += 1
        while len(running) >= 12 or (number == count - 1 and running):
            for output in engine.step():
                if output.finished:
                    prompt = running.pop(output.request_id)
                    reason = str(output.outputs[0].finish_reason)
                    ended[reason] += 1
                    if reason == "length" and ended[reason] % 50 == 1:
                        check_greedy(model, prompt, list(output.outputs[0].token_ids))
    assert ended.total() == count
    assert ended["length"] > count // 2 and ended["abort"] and (ranks > 1 or ended["error"])
    check_free(engine)
