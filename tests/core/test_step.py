"""The step as docs/architecture.md shows it."""

import inspect
import textwrap
from pathlib import Path

import pytest

from engine_server import EngineArgs, LLMEngine, SamplingParams
from engine_server.core.engine_core import EngineCore

PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"


def test_documented_step_is_the_one_that_executes() -> None:
    source = inspect.getsource(EngineCore.step)
    _, _, body = source.partition(f'"""{EngineCore.step.__doc__}"""\n')
    assert body and textwrap.dedent(body) in PAGE.read_text()


def test_head_takes_the_states_of_the_latest_forward_alone(tiny_llama: Path) -> None:
    args = EngineArgs(
        model=str(tiny_llama), skip_tokenizer_init=True, num_gpu_blocks_override=16, disable_log_stats=True
    )
    engine = LLMEngine.from_engine_args(args)
    core = engine._core
    engine.add_request("r", {"prompt_token_ids": [3, 4, 5]}, SamplingParams(detokenize=False))
    batch = core.scheduler.schedule()
    earlier, latest = core.executor.forward(batch), core.executor.forward(batch)
    with pytest.raises(AssertionError, match="an earlier forward"):
        core.executor.head(earlier, None)
    [result] = core.executor.head(latest, None).collect()
    assert len(result.tokens) == 1
