"""A sampler without a model, which is given logits."""

from collections.abc import Mapping, Sequence

from torch import Tensor

from engine_server.config.model import LogprobsMode
from engine_server.core.forward_output import NO_OUTPUT
from engine_server.core.replay import Replay
from engine_server.core.sampling.bias import LogitBias
from engine_server.core.sampling.custom import CustomProcessor, CustomProcessors
from engine_server.core.sampling.grammars import Grammars
from engine_server.core.sampling.head import HiddenStates
from engine_server.core.sampling.penalties import Penalties
from engine_server.core.sampling.pipeline import LogitsPipeline
from engine_server.core.sampling.sampler import Sampler
from engine_server.core.scheduling.batch import Batch, Scheduled
from engine_server.core.scheduling.request import GenerationRequest
from engine_server.core.scheduling.step_result import StepResult
from engine_server.modeling.device.timing import DeviceTimer
from engine_server.modeling.platform.cpu import CpuPlatform
from engine_server.modeling.platform.interface import Platform

EOS = 2
# The tokens passed to each call of `count_tokens`.
COUNTED: list[list[int]] = []


def count_tokens(token_ids: list[int], row: Tensor) -> Tensor:
    """Record a call and return the logits unchanged, as a logits processor."""
    COUNTED.append(token_ids)
    return row


class TestedSampler:
    """A sampler with the grammars that fill its masks."""

    __test__ = False

    def __init__(self, sampler: Sampler, grammars: Grammars) -> None:
        self.sampler = sampler
        self.grammars = grammars
        # The requests that have rows.
        self._rows: dict[int, GenerationRequest] = {}

    def give_row(self, row: int, request: GenerationRequest) -> None:
        """Give a row to a request, as a scheduler does, unless it has it."""
        if self._rows.get(row) is request:
            return
        if row in self._rows:
            self.sampler.close(row)
        self._rows[row] = request
        self.grammars.open(request)
        self.sampler.open(row, request)

    def launch(self, batch: Batch, logits: Tensor, captured: bool = False) -> list[StepResult]:
        """Sample from the logits of a batch's parts. captured: they are those of a captured step."""
        replay = Replay(*[None] * 4) if captured else None  # type: ignore[arg-type]
        states = HiddenStates(batch, [], NO_OUTPUT._replace(replay=replay))
        return self.sampler.launch(states, iter([logits]), self.grammars.fill(batch)).pending.collect()


def make_sampler(
    vocabulary: int,
    max_num_seqs: int,
    platform: Platform | None = None,
    custom: Mapping[str, CustomProcessor] | None = None,
    logprobs_mode: LogprobsMode = "raw_logprobs",
) -> TestedSampler:
    platform = platform or CpuPlatform()
    penalties = Penalties(max_num_seqs, 100, vocabulary, platform)
    pipeline = LogitsPipeline([LogitBias(platform), CustomProcessors(custom or {}), penalties], platform)
    sampler = Sampler(pipeline, logprobs_mode, max_num_seqs, platform, DeviceTimer())
    return TestedSampler(sampler, Grammars([EOS], vocabulary, platform))


def launch(
    tested: TestedSampler,
    logits: Tensor,
    requests: Sequence[GenerationRequest],
    captured: bool = False,
) -> list[StepResult]:
    """Sample the token that follows each request's tokens; its row of tables is its index."""
    batch = []
    for row, request in enumerate(requests):
        tested.give_row(row, request)
        length = len(request.token_ids)
        batch.append(Scheduled(request, row, length - 1, 1, samples=True))
    return tested.launch(batch, logits, captured)
