"""The caller's side of an engine: admission of requests, their outputs, and statistics."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import msgspec

from engine_server.config import EngineConfig
from engine_server.contract.base.caller import ReportedCaller
from engine_server.contract.base.quoting import quote
from engine_server.engine.compat import refuse
from engine_server.engine.input.admission import (
    check_lora,
    check_priority,
    check_prompt_adapter,
    check_trace_headers,
)
from engine_server.engine.input.media_input import MediaInput
from engine_server.engine.input.picture_spans import pictures_of, place_pictures
from engine_server.engine.input.pictures import Pictures
from engine_server.engine.input.processor import Processor
from engine_server.engine.input.tokenizer import adapter_tokenizer, backend_of
from engine_server.engine.output.output_processor import OutputProcessor, PreparedRequest
from engine_server.engine.output.token_texts import TokenTexts
from engine_server.requests.adapters import LoRARequest, PromptAdapterRequest
from engine_server.requests.errors import InvalidRequestError, QueueFullError
from engine_server.requests.messages import (
    AddRequest,
    PictureInputs,
    PictureWanted,
    PromptLogprobsPart,
    RequestStep,
    Vocabulary,
)
from engine_server.requests.outputs import Output
from engine_server.requests.picture_stats import PictureStats
from engine_server.requests.pictures import ProcessedPicture
from engine_server.requests.scheduler_stats import SchedulerStats
from engine_server.requests.structured_outputs import StructuredOutputsParams
from engine_server.requests.submission import Origin, Submission
from engine_server.structured.trial_process import Verdict
from engine_server.structured.trials import GrammarTrials
from engine_server.telemetry.engine_loggers import StatLoggers, create_loggers
from engine_server.telemetry.stats import IterationStats

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


# Of the pictures, as they were sent, of all requests in flight, which may be processed again.
MOST_PICTURE_BYTES = 1 << 30


class FrontEnd:
    """The tokenizer, request states and stat loggers of one engine.

    A request is checked, prepared and added. Only `prepare` may run in another thread.
    """

    def __init__(
        self,
        config: EngineConfig,
        tokenizer: PreTrainedTokenizerBase | None,
        vocabulary: Vocabulary | None,
        log_stats: bool,
        stat_loggers: StatLoggers | None,
        pictures: Pictures | None = None,
    ) -> None:
        """vocabulary: None if the engine can't follow grammars. pictures: None if prompts have none."""
        self.tokenizer = tokenizer
        self.config = config.scheduler_config
        self.lora = config.lora_config
        self._prompt_adapters = config.prompt_adapter_config
        self._pools = config.model_config.pooling is not None
        self._context = config.model_config.max_model_len
        self.processor = Processor(config.model_config, self.tokenizer)
        # Why prompts have no pictures; empty if they may have some.
        self.refuses_pictures = config.model_config.refuses_pictures or "the engine processes none"
        # The bytes that each token adds to a text; None if the engine can't follow grammars.
        self.token_bytes: Sequence[bytes] | None = vocabulary.tokens if vocabulary else None
        backend = backend_of(self.tokenizer) if self.tokenizer else None
        self.token_texts = TokenTexts(backend, self.token_bytes or ())
        self.requests = OutputProcessor(backend, config.model_config.eos_token_ids, self.token_texts)
        self._trials = GrammarTrials(vocabulary) if vocabulary else None
        self.traces = config.observability_config.otlp_traces_endpoint is not None
        self.loggers = create_loggers(config, log_stats, stat_loggers)
        if pictures is not None:
            self.take_pictures(pictures)

    def take_pictures(self, pictures: Pictures) -> None:
        """Take pictures in prompts. Raises ValueError for a tokenizer that has no token for them."""
        if self.tokenizer is None:
            raise ValueError("the engine has no tokenizer: it was made with skip_tokenizer_init")
        self.processor.media = MediaInput(backend_of(self.tokenizer), pictures)
        self.refuses_pictures = ""

    def require_tokenizer(self, lora_request: LoRARequest | None) -> PreTrainedTokenizerBase:
        """Return the tokenizer, or the adapter's own. Raises ValueError if the engine was made without one."""
        lora = check_lora(lora_request, self.lora)
        if self.tokenizer is None:
            raise ValueError("the engine has no tokenizer: it was made with skip_tokenizer_init")
        return (adapter_tokenizer(lora.lora_path) if lora else None) or self.tokenizer

    def adapter_call(self, lora_request: LoRARequest) -> dict[str, Any]:
        """Return the argument of the core's add_lora. Raises InvalidRequestError."""
        if lora_request is None:
            raise InvalidRequestError("there is no lora_request", "lora_request")
        checked: dict[str, Any] = msgspec.to_builtins(check_lora(lora_request, self.lora))
        return checked

    def prompt_adapter_call(self, named: PromptAdapterRequest) -> dict[str, Any]:
        """Return the argument of the core's add_prompt_adapter. Raises InvalidRequestError."""
        if named is None:
            raise InvalidRequestError("there is no prompt_adapter_request", "prompt_adapter_request")
        checked: dict[str, Any] = msgspec.to_builtins(self._prompt_adapter(named))
        return checked

    def num_virtual(self, named: PromptAdapterRequest | None) -> int:
        """Return the number of a prompt adapter's virtual tokens; 0 for none. Raises InvalidRequestError."""
        checked = self._prompt_adapter(named)
        return checked.prompt_adapter_num_virtual_tokens if checked else 0

    def _prompt_adapter(self, named: PromptAdapterRequest | None) -> PromptAdapterRequest | None:
        if named is not None and self._pools:
            raise InvalidRequestError("a pooling model takes no prompt adapters", "prompt_adapter_request")
        return check_prompt_adapter(named, self._prompt_adapters, self._context)

    def check(self, submission: Submission) -> None:
        """Raise InvalidRequestError for an unsupported parameter, QueueFullError if there is no room."""
        origin = submission.origin
        check_priority(origin.priority)
        check_trace_headers(origin.trace_headers)
        check_lora(origin.lora_request, self.lora)
        self._prompt_adapter(origin.prompt_adapter_request)
        refuse(
            trace_headers=origin.trace_headers if not self.traces else None,
            priority=0 if self.config.takes_priorities else origin.priority,
        )
        self.check_room(1)

    def _priority(self, origin: Origin) -> int:
        """Return a request's priority: its caller's, where requests are scheduled by it."""
        if origin.caller is not None and self.config.takes_priorities:
            return origin.caller.priority
        return check_priority(origin.priority)

    def prepare(self, submission: Submission) -> PreparedRequest:
        """Validate and tokenize a request. Raises InvalidRequestError."""
        origin = submission.origin
        request, token_ids, text = self.processor.process(
            submission.prompt,
            submission.params,
            submission.arrival_time,
            self.num_virtual(origin.prompt_adapter_request),
            origin.caller.scope if origin.caller else None,
        )
        if request.params.reasoning is not None:
            request.params.reasoning.check(self.token_bytes)
        request.priority = self._priority(origin)
        request.lora = check_lora(origin.lora_request, self.lora)
        request.prompt_adapter = self._prompt_adapter(origin.prompt_adapter_request)
        pictures = place_pictures(request, pictures_of(submission.prompt))
        params = request.pooling or request.params
        if params.timeout is not None:
            request.deadline = request.arrival + params.timeout
        prepared = self.requests.prepare(submission, request, token_ids, text)
        prepared.state.pictures = pictures
        prepared.state.caller = origin.caller.id if origin.caller else None
        return prepared

    def encoder_inputs(self, wanted: PictureWanted) -> Future[PictureInputs] | None:
        """Process a picture of a request again, whose rows the core lacks; None if the request has ended."""
        state = self.requests.state_of(wanted.request_id)
        picture = None if state is None else state.pictures.get(wanted.digest)
        if state is None or picture is None or self.processor.media is None:
            return None
        answer: Future[PictureInputs] = Future()

        def finish(processed: Future[ProcessedPicture]) -> None:
            error = processed.exception()
            if error is None:
                found = PictureInputs(wanted.request_id, wanted.digest, processed.result().inputs)
            else:
                found = PictureInputs(wanted.request_id, wanted.digest, error=str(error))
            answer.set_result(found)

        try:
            self.processor.media.pictures.process(picture, state.caller).add_done_callback(finish)
        except (InvalidRequestError, QueueFullError) as error:
            answer.set_result(PictureInputs(wanted.request_id, wanted.digest, error=str(error)))
        return answer

    def try_grammar(
        self, prepared: PreparedRequest, caller: ReportedCaller | None = None
    ) -> Future[Verdict] | None:
        """Start the trial of a request's grammar, whose verdict `set_grammar` takes; None for a request without one.

        Cancel it for a request that ends before. Raises InvalidRequestError, QueueFullError, ShareUsedError.
        """
        grammar = prepared.state.params.structured_outputs
        return None if grammar is None else self.start_trial(grammar, caller)

    def start_trial(
        self,
        grammar: StructuredOutputsParams,
        caller: ReportedCaller | None,
        parts: Sequence[StructuredOutputsParams] = (),
    ) -> Future[Verdict]:
        """Return a grammar's verdict, once it has been tried, and its parts if it can't be used; see `GrammarTrials`.

        Raises InvalidRequestError, QueueFullError, ShareUsedError.
        """
        if self._trials is None:
            raise InvalidRequestError(
                "structured outputs need a tokenizer and an end-of-sequence token, and this engine lacks one",
                "structured_outputs",
            )
        return self._trials.start(grammar, caller.id if caller else None, parts)

    def set_grammar(self, prepared: PreparedRequest, verdict: Verdict) -> None:
        """Write a request's grammar, which has been tried, to its message. Raises InvalidRequestError."""
        params = prepared.message.params
        assert params.structured_outputs is not None
        translated = StructuredOutputsParams(
            grammar=verdict.grammar(), starts_after=params.structured_outputs.starts_after
        )
        prepared.message.params = msgspec.structs.replace(params, structured_outputs=translated)

    def add(self, prepared: PreparedRequest) -> AddRequest | None:
        """Store a request's state; return its message to the core, None if the tokens that it resumes already end it.

        Raises InvalidRequestError if a request with its id is in flight, QueueFullError if there is no room.
        """
        self.check_room(len(prepared.message.request_ids))
        self._check_picture_room(prepared.state.picture_bytes)
        request_id = prepared.state.request_id
        if request_id in self.requests:
            raise InvalidRequestError(f"a request with the id {quote(request_id)} is in flight", "request_id")
        return prepared.message if self.requests.add(prepared.state) else None

    def _check_picture_room(self, size: int) -> None:
        """Raise QueueFullError if the pictures of requests in flight would take too much memory with `size` more."""
        if size and size + sum(state.picture_bytes for state in self.requests) > MOST_PICTURE_BYTES:
            self.loggers.record(None, IterationStats(num_rejected=1))
            raise QueueFullError(
                f"the pictures of all requests in flight take more than {MOST_PICTURE_BYTES >> 20} MiB; try again later"
            )

    def process(
        self,
        steps: Sequence[RequestStep],
        scheduler_stats: SchedulerStats | None,
        stalls: Sequence[float] = (),
    ) -> tuple[list[Output], list[str]]:
        """Return the outputs that are due after a step, and the core's ids of requests that it must abort.

        stalls: stalls of the event loop since the last call, in seconds.
        """
        media = self.processor.media
        stats = IterationStats(
            event_loop_stalls=list(stalls),
            prompts=self.processor.times.take(),
            pictures=PictureStats() if media is None else media.pictures.take_stats(),
        )
        outputs, aborts = self.requests.process(steps, stats)
        self.loggers.record(scheduler_stats, stats)
        return outputs, aborts

    def add_prompt_logprobs(self, part: PromptLogprobsPart) -> tuple[list[Output], list[str]]:
        """Add log-probabilities of a prompt. Returns a last output and ids to abort if that ends its request."""
        stats = IterationStats()
        outputs, aborts = self.requests.add_prompt_logprobs(part, stats)
        if outputs:
            self.loggers.record(None, stats)
        return outputs, aborts

    def abort(self, request_ids: Iterable[str]) -> tuple[list[Output], list[str]]:
        """Return the last outputs of requests in flight, and the core's ids to abort."""
        stats = IterationStats()
        outputs, aborts = self.requests.abort(request_ids, stats)
        self.loggers.record(None, stats)
        return outputs, aborts

    def check_room(self, count: int) -> None:
        """Raise QueueFullError if `count` more completions don't fit the queue.

        Raises InvalidRequestError if they would not fit an empty one either.
        """
        config, running = self.config, self.requests.num_running
        if config.max_queue is None:
            return
        room = config.max_num_seqs + config.max_queue
        if count > room:
            raise InvalidRequestError(
                f"there are {count} completions, of which n are for each prompt; this engine takes {room} "
                "at a time",
                "n",
            )
        if running + count > room:
            self.loggers.record(None, IterationStats(num_rejected=1))
            raise QueueFullError(
                f"{running} completions are in flight, of {room} at most; {count} more don't fit; try again later"
            )
