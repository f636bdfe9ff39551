"""Decode steps as programs: the same bits as the model's own code, for every architecture that has one."""

from pathlib import Path

import pytest
import torch
import transformers
from architectures import ARCHITECTURES, SIZES, Architecture, widened
from native_kernels import needs_kernels
from tiers import tiered

from engine_server import EngineArgs, LLMEngine, SamplingParams, StatLoggerBase
from engine_server.modeling.graphs import step_programs
from engine_server.requests.scheduler_stats import SchedulerStats
from engine_server.telemetry.stats import IterationStats

pytestmark = [needs_kernels, pytest.mark.usefixtures("shared_trials")]
LENGTHS = (3, 14, 5, 9, 4, 7)
NEW_TOKENS = 12
# The oldest supported release of transformers; docs/models.md describes the newest.
OLDEST = "5.18.0"


class Steps(StatLoggerBase):
    """Counts the steps that were replayed, and those that were eager."""

    def __init__(self, config: object = None, engine_index: int = 0) -> None:
        self.replayed = self.eager = 0

    def record(self, scheduler_stats: SchedulerStats | None, iteration_stats: IterationStats | None) -> None:
        if scheduler_stats and scheduler_stats.num_tokens:
            self.replayed += scheduler_stats.replayed
            self.eager += not scheduler_stats.replayed

    def log_engine_initialized(self) -> None: ...


def decode(folder: Path, finish, eager: bool, dtype: str, most: int = 8) -> tuple[list[object], Steps]:
    """Return the tokens and log-probabilities of several requests, and the numbers of steps."""
    steps = Steps()
    engine = LLMEngine.from_engine_args(
        EngineArgs(
            model=str(folder), dtype=dtype, skip_tokenizer_init=True, max_model_len=64, block_size=16,
            num_gpu_blocks_override=64, max_num_batched_tokens=64, max_num_seqs=most, enforce_eager=eager,
        ),
        stat_loggers={"steps": steps},
    )  # fmt: skip
    for name, length in enumerate(LENGTHS):
        prompt = {"prompt_token_ids": [2 + (7 * name + place) % 90 for place in range(length)]}
        params = SamplingParams(
            temperature=0, max_tokens=NEW_TOKENS - name, ignore_eos=True, detokenize=False, logprobs=3
        )
        engine.add_request(str(name), prompt, params)
    last = finish(engine)
    outputs = [last[str(name)].outputs[0] for name in range(len(LENGTHS))]
    return [(output.token_ids, output.logprobs) for output in outputs], steps


def save(architecture: Architecture, folder: Path, factor: int = 1) -> None:
    """Save a random model, with rows `factor` times as wide."""
    torch.manual_seed(0)
    model_class = getattr(transformers, architecture.model)
    settings = widened(SIZES | architecture.settings, factor)
    model_class(model_class.config_class(**settings)).save_pretrained(folder)


# Dense, with windows and scaled embeddings, with learned positions, and with experts; the others are thorough tests.
QUICK = "gemma 3"
MORE = "llama", "gpt2", "mixtral"
RECORDED = [one for one in ARCHITECTURES if one.recorded]


by_architecture = pytest.mark.parametrize(
    "architecture",
    tiered(
        RECORDED,
        *(one for one in RECORDED if one.name == QUICK),
        more=[one for one in RECORDED if one.name in MORE],
        ids=lambda architecture: architecture.name,
    ),
)


@pytest.mark.parametrize("dtype", tiered(["float32", "bfloat16"], "bfloat16"))
@by_architecture
def test_program_has_the_same_bits_as_the_eager_step(
    architecture: Architecture, dtype: str, tmp_path: Path, finish
) -> None:
    save(architecture, tmp_path)
    """Steps with prompts, which are cut into chunks beside decodes, are replayed too."""
    expected, eager = decode(tmp_path, finish, True, dtype)
    found, steps = decode(tmp_path, finish, False, dtype)
    assert found == expected
    assert (steps.replayed, steps.eager) == (eager.eager, 0) and eager.replayed == 0


@pytest.mark.transformers
@by_architecture
def test_program_has_only_the_documented_operations_of_torch(
    architecture: Architecture, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Weights of 8 bits are multiplied by native kernels on every CPU; dense ones by oneDNN on some."""
    save(architecture, tmp_path, factor=8)
    with caplog.at_level("INFO", logger=step_programs.__name__):
        LLMEngine.from_engine_args(
            EngineArgs(
                model=str(tmp_path), dtype="bfloat16", quantization="int8", skip_tokenizer_init=True, max_model_len=48,
                block_size=16, num_gpu_blocks_override=64, max_num_batched_tokens=64, max_num_seqs=8,
            )
        )  # fmt: skip
    states, logits = [message for message in caplog.messages if message.startswith("recorded the")]
    operations = states.split("; ")[1:] + logits.split("; ")[1:]
    names = {operation.split()[1].removeprefix("aten.").split(".")[0] for operation in operations}
    expected = set(architecture.torch_operations)
    if architecture.name == "deepseek-v2" and transformers.__version__ == OLDEST:
        expected.add("matmul")  # of its router
    assert names == expected
