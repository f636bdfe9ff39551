"""Beam search on top of any engine: each step is one request a beam, for one token and its likeliest alternatives."""

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec

from engine_server.engine.input.processor import Processor
from engine_server.requests import validation as valid
from engine_server.requests.logprobs import TokenLogprobs
from engine_server.requests.outputs import CompletionOutput, RequestOutput
from engine_server.requests.prompts import PromptType
from engine_server.requests.sampling_params import MAX_LOGPROBS, SamplingParams

if TYPE_CHECKING:
    from engine_server.engine.llm_engine import LLMEngine

T = TypeVar("T")


class BeamSearchParams(msgspec.Struct):
    """A beam's score is its logprob / (its output tokens ** length_penalty). Raises InvalidRequestError."""

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    temperature: float = 0.0
    length_penalty: float = 1.0
    # Keep the end-of-sequence token in a beam's tokens.
    include_stop_str_in_output: bool = False

    def __post_init__(self) -> None:
        self.beam_width = valid.integer("beam_width", self.beam_width, 1, MAX_LOGPROBS // 2)
        self.max_tokens = valid.integer("max_tokens", self.max_tokens, 1, valid.MAX_INT32)
        self.ignore_eos = valid.flag("ignore_eos", self.ignore_eos)
        self.temperature = valid.number("temperature", self.temperature, 0, 0)
        self.length_penalty = valid.number("length_penalty", self.length_penalty)
        self.include_stop_str_in_output = valid.flag(
            "include_stop_str_in_output", self.include_stop_str_in_output
        )


@dataclass(slots=True)
class BeamSearchSequence:
    """One beam. `tokens` are the prompt's and its own, `logprobs` are of its own alone."""

    tokens: list[int]
    logprobs: list[TokenLogprobs]
    cum_logprob: float = 0.0
    text: str | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


class Candidate(NamedTuple):
    """A continuation of a beam by one token. Only those that are chosen get lists of their own."""

    beam: BeamSearchSequence
    token: int
    entry: TokenLogprobs
    cum_logprob: float

    def sequence(self) -> BeamSearchSequence:
        tokens, logprobs = [*self.beam.tokens, self.token], [*self.beam.logprobs, self.entry]
        return BeamSearchSequence(tokens, logprobs, self.cum_logprob)


@dataclass(slots=True)
class BeamSearchOutput:
    # Sorted, the best first.
    sequences: list[BeamSearchSequence]


class BeamSearch:
    """One prompt's search: generate for each of `beams` with `step_params`, and `advance`, until there are none.

    As transformers with early_stopping=False: of the 2 * beam_width likeliest continuations, those in the first
    half that end are kept, and the search is over when the likeliest beam scores no better than the worst of
    beam_width that ended. (For a model with several end-of-sequence tokens, transformers examines more continuations.)
    """

    def __init__(
        self, prompt: PromptType, params: BeamSearchParams, processor: Processor, num_virtual: int = 0
    ) -> None:
        """num_virtual: number of a prompt adapter's virtual tokens before the prompt."""
        self.params = params
        self.step_params = SamplingParams(
            temperature=0,
            max_tokens=1,
            logprobs=2 * params.beam_width,
            detokenize=processor.tokenizer is not None,
        )
        self.prompt, self.prompt_token_ids = processor.tokens(prompt, num_virtual=num_virtual)
        self.beams = [BeamSearchSequence(self.prompt_token_ids, [])]
        # Ended beams, sorted, the best first.
        self.sequences: list[BeamSearchSequence] = []
        self._processor = processor
        self._eos_token_ids = () if params.ignore_eos else processor.config.eos_token_ids
        room = processor.config.max_model_len - num_virtual - len(self.prompt_token_ids)
        self._steps_left = min(params.max_tokens, room)

    def advance(self, completions: Sequence[CompletionOutput]) -> None:
        """Choose the next beams among the continuations of the present ones; end them all where one has timed out."""
        if any(completion.finish_reason == "timeout" for completion in completions):
            for beam in self.beams:
                self._end(beam, "timeout")
            self.beams = []
            return
        candidates: list[Candidate] = []
        for beam, completion in zip(self.beams, completions, strict=True):
            if not completion.logprobs:  # the request failed
                self._end(beam, completion.finish_reason, completion.stop_reason)
            for entry in completion.logprobs or ():
                candidates += [
                    Candidate(beam, token, entry, beam.cum_logprob + one.logprob)
                    for token, one in entry.items()
                ]
        candidates.sort(key=lambda one: -one.cum_logprob)
        self.beams = []
        self._steps_left -= 1
        width = self.params.beam_width
        for rank, candidate in enumerate(candidates[: 2 * width]):
            ends = candidate.token in self._eos_token_ids
            if rank < width and (ends or not self._steps_left):
                self._end(candidate.sequence(), "stop" if ends else "length")
            elif not ends and len(self.beams) < width:
                self.beams.append(candidate.sequence())
        full = len(self.sequences) == width
        if not self._steps_left or (
            full and self.beams and self._score(self.beams[0]) <= self._score(self.sequences[-1])
        ):
            self.beams = []

    def output(self, request_id: str) -> RequestOutput:
        """Return the sequences as a request's completions."""
        start = len(self.prompt_token_ids)
        completions = [
            CompletionOutput(
                rank, one.text or "", one.tokens[start:], one.cum_logprob, one.logprobs, one.finish_reason,
                one.stop_reason,
            )
            for rank, one in enumerate(self.sequences)
        ]  # fmt: skip
        return RequestOutput(
            request_id, self.prompt, self.prompt_token_ids, outputs=completions, finished=True
        )

    def _end(self, beam: BeamSearchSequence, reason: str | None, stop: int | str | None = None) -> None:
        beam.finish_reason, beam.stop_reason = reason, stop
        if reason == "stop" and not self.params.include_stop_str_in_output:
            del beam.tokens[-1]
        if self._processor.tokenizer is not None:
            output = beam.tokens[len(self.prompt_token_ids) :]
            beam.text = str(self._processor.tokenizer.decode(output, skip_special_tokens=True))
        self.sequences = sorted([*self.sequences, beam], key=self._score, reverse=True)
        del self.sequences[self.params.beam_width :]

    def _score(self, beam: BeamSearchSequence) -> float:
        return beam.cum_logprob / float(max(1, len(beam.logprobs)) ** self.params.length_penalty)


def beam_search(
    engine: "LLMEngine", prompts: Sequence[PromptType], params: BeamSearchParams
) -> list[BeamSearchOutput]:
    """Search for all prompts together, on an engine without other requests; end all of them on an error."""
    searches = [BeamSearch(prompt, params, engine.get_input_preprocessor()) for prompt in prompts]
    while running := [search for search in searches if search.beams]:
        outputs: dict[str, CompletionOutput] = {}
        request_ids: list[str] = []
        try:
            for number, search in enumerate(running):
                for rank, beam in enumerate(search.beams):
                    request_ids.append(f"beam-{number}-{rank}")
                    engine.add_request(request_ids[-1], {"prompt_token_ids": beam.tokens}, search.step_params)
            while engine.has_unfinished_requests():
                outputs |= {output.request_id: output.outputs[0] for output in engine.step()}
        except BaseException:
            engine.abort_request(request_ids)
            raise
        for number, search in enumerate(running):
            search.advance([outputs[f"beam-{number}-{rank}"] for rank in range(len(search.beams))])
    return [BeamSearchOutput(search.sequences) for search in searches]


async def all_or_none(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run coroutines together and return their results; when one raises, cancel the others and raise its error."""
    tasks = [asyncio.create_task(coroutine) for coroutine in work]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        raise
