"""The head that samples: given the same logits, a request's token i depends on its seed, choice index and i alone."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
import torch
from torch import Tensor

from engine_server.config.model import LogprobsMode
from engine_server.core.sampling.draw import DrawParameters, draw
from engine_server.core.sampling.head import HiddenStates, Launched
from engine_server.core.sampling.logprobs import num_ranked, rank, token_logprobs
from engine_server.core.sampling.pipeline import LogitsPipeline
from engine_server.core.sampling.prompt_logprobs import PromptChunk
from engine_server.core.sampling.row_parameters import RowParameters
from engine_server.core.sampling.token_masks import TokenMasks
from engine_server.core.scheduling.batch import Batch, sampled_part
from engine_server.core.scheduling.request import GenerationRequest, Request
from engine_server.core.scheduling.step_result import StepResult
from engine_server.modeling.device.timing import DeviceTimer
from engine_server.modeling.platform.interface import Platform

if TYPE_CHECKING:
    from engine_server.core.sampling.kernel_sampler import KernelSampler


class PendingTokens:
    """A step's tokens and log-probabilities that are being copied from the device."""

    def __init__(
        self,
        tokens: Tensor,
        largest: Tensor,
        errors: dict[int, str],
        ranked: list[Tensor],
        counts: Mapping[int, int],
        prompts: list[tuple[PromptChunk, list[Tensor]]],
        platform: Platform,
        timer: DeviceTimer,
    ) -> None:
        """Start the copies to the host.

        tokens, largest: [n], a token and the largest logit of each row; errors: by row; ranked: the
        result of `logprobs.rank` for the rows of `counts`; prompts: the same for chunks of prompts.
        """
        self._errors = errors
        self._counts = counts
        self._tokens, self._largest, *self._ranked = map(to_host, (tokens, largest, *ranked))
        self._prompts = [(chunk, [to_host(part) for part in parts]) for chunk, parts in prompts]
        self._timer = timer
        self._copied = platform.record_event()

    def collect(self) -> list[StepResult]:
        """Wait for the device; return a token for each row, or the reason why it has none."""
        with self._timer.measure():
            if self._copied:
                self._copied.synchronize()
        for chunk, parts in self._prompts:
            chunk.record(parts)
        results = [StepResult([token]) for token in self._tokens.tolist()]
        for row, error in (find_errors(self._largest.tolist()) | self._errors).items():
            results[row] = msgspec.structs.replace(results[row], error=error)
        if self._counts:
            found = token_logprobs(self._ranked, list(self._counts.values()))
            for row, one in zip(self._counts, found, strict=True):
                results[row] = msgspec.structs.replace(results[row], logprobs=[one])
        return results


class Sampler:
    """A head that takes the likeliest token, or draws one by temperature, filters and one random number per token."""

    def __init__(
        self,
        pipeline: LogitsPipeline,
        logprobs_mode: LogprobsMode,
        max_num_rows: int,
        platform: Platform,
        timer: DeviceTimer,
    ) -> None:
        self._pipeline = pipeline
        self._logprobs_mode = logprobs_mode
        self._platform = platform
        self._timer = timer
        self._parameters = RowParameters(max_num_rows)
        self.kernels: KernelSampler | None = None
        if platform.samples_by_kernel:
            from engine_server.core.sampling import kernel_sampler

            self.kernels = kernel_sampler.KernelSampler(max_num_rows, platform)

    def open(self, row: int, request: Request) -> None:
        assert isinstance(request, GenerationRequest)
        self._parameters.open(row, request.params, request.choice_index)
        self._pipeline.open(row, request)

    def close(self, row: int) -> None:
        self._parameters.close(row)
        self._pipeline.close(row)

    @torch.inference_mode()
    def launch(
        self, states: HiddenStates, each_logits: Iterator[Tensor], masks: TokenMasks | None
    ) -> Launched:
        sampling = sampled_part(states.batch)
        logits = next(each_logits)
        prompts = [(chunk, chunk.rank(next(each_logits), self._platform)) for chunk in states.chunks]
        counts = {
            row: num_ranked(count, logits.shape[1])
            for row, count in self._parameters.logprobs(sampling).items()
        }
        rows = self._platform.to_device(list(counts)) if counts else None
        values = None if rows is None else self._values("raw", logits, rows, counts, sampling)
        adjusted = self._pipeline.rows(sampling)
        errors: dict[int, str] = {}
        if masks is not None:
            errors = self._pipeline.mask(logits, masks)
        if adjusted:
            logits = logits.float()
            errors |= self._pipeline.apply(logits, adjusted)
        if masks is not None:
            self._pipeline.redirect(logits, masks)
        if rows is not None and values is None:
            values = self._values("processed", logits, rows, counts, sampling)
        with self._timer.measure():
            tokens, largest = self._draw(logits, sampling, states.output.replay is not None)
        self._pipeline.observe(tokens, adjusted)
        ranked = [] if values is None else rank(values, tokens[rows], max(counts.values()))
        pending = PendingTokens(tokens, largest, errors, ranked, counts, prompts, self._platform, self._timer)
        return Launched(pending, tokens)

    @torch.inference_mode()
    def run_largest(self, logits: Tensor) -> None:
        """Do what takes the most memory with logits [n, vocabulary], to measure it; discard the results."""
        logits = logits.float()
        self._pipeline.run_largest(logits)
        chances = logits.softmax(-1)  # log-probabilities need as much
        if self.kernels is None or self._logprobs_mode.startswith("processed"):
            chances.sort(-1)  # filters need no more

    def likely_tokens(self, parts: Batch, logits: Tensor) -> list[int]:
        """Return the token that each part would take from its logits [n, vocabulary], without processors.

        It is drawn with the random number of the token that the part samples, so that equal logits give equal tokens at
        any temperature.
        """
        tokens = logits.argmax(dim=-1)
        if rows := self._parameters.drawn(parts):
            tokens[rows] = draw(logits[rows].float(), self._draw_parameters(parts, rows, logits))
        result: list[int] = tokens.tolist()
        return result

    def _draw(self, logits: Tensor, sampling: Batch, captured: bool) -> tuple[Tensor, Tensor]:
        """Return a token for each row of `logits` [n, vocabulary], int64 [n], and its largest logit."""
        if self.kernels:
            self.kernels.fill(self._parameters.records(sampling))
            return self.kernels.sample(logits, captured)
        largest, tokens = self._platform.likeliest(logits)
        if rows := self._parameters.drawn(sampling):
            tokens[rows] = draw(logits[rows].float(), self._draw_parameters(sampling, rows, logits))
        return tokens, largest

    def _draw_parameters(self, parts: Batch, drawn: Sequence[int], logits: Tensor) -> DrawParameters:
        """Return the parameters of those parts that are drawn from logits [n, vocabulary]."""
        records = self._parameters.records([parts[index] for index in drawn])
        return DrawParameters(records, logits.shape[1], logits.device)

    def _values(
        self, stage: str, logits: Tensor, rows: Tensor, counts: Mapping[int, int], sampling: Batch
    ) -> Tensor | None:
        """Return the values that logprobs are computed from, float32 [rows, vocabulary]; None at the other stage.

        stage: "raw" before the logits processors, "processed" after them, with temperature and filters.
        """
        mode, _, kind = self._logprobs_mode.partition("_")
        if mode != stage:
            return None
        values = logits[rows].float()
        if stage == "processed":
            parts = [sampling[row] for row in counts]
            if drawn := self._parameters.drawn(parts):
                positions = self._platform.to_device(drawn)
                parameters = self._draw_parameters(parts, drawn, logits)
                values[positions] = parameters.filter(values[positions])
        return values.log_softmax(dim=-1) if kind == "logprobs" else values


def to_host(tensor: Tensor) -> Tensor:
    """Start a copy to the host; the source may be overwritten by work that is launched later."""
    return tensor.to("cpu", non_blocking=True, copy=True)


def find_errors(largest: Sequence[float]) -> dict[int, str]:
    """Return the errors of rows with these largest logits, by row."""
    return {
        row: "no token is left to choose from" if value == -math.inf else "the logits are not finite"
        for row, value in enumerate(largest)
        if not math.isfinite(value)
    }
