"""One rank's part of the executor: the model, its KV cache, its captured steps and, on the first rank, the head."""

import logging
import pkgutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from engine_server.config import EngineConfig
from engine_server.config.start_facts import StartFacts
from engine_server.core.cache.block_pool import BlockPool
from engine_server.core.cache.block_table import BlockTable
from engine_server.core.distributed.outcomes import gather_outcomes
from engine_server.core.drafting.draft_head_steps import DraftHeadSteps
from engine_server.core.drafting.draft_model_steps import DraftModelSteps
from engine_server.core.drafting.draft_steps import DraftSteps
from engine_server.core.encoding.rank_rows import RankRows
from engine_server.core.forward_output import ForwardOutput
from engine_server.core.loaded_model import LoadedModel
from engine_server.core.model_inputs import EMPTY, ModelInputs
from engine_server.core.pooling.pooler import Pooler
from engine_server.core.replay import Replay
from engine_server.core.runner import OnPhase, Runner
from engine_server.core.sampling.bias import LogitBias
from engine_server.core.sampling.custom import CustomProcessors
from engine_server.core.sampling.head import Head
from engine_server.core.sampling.penalties import Penalties
from engine_server.core.sampling.pipeline import LogitsPipeline
from engine_server.core.sampling.sampler import Sampler
from engine_server.core.scheduling.request import Request
from engine_server.core.step_capture import MOST_MIXED, EagerStep, StepCapture
from engine_server.modeling.adapters.peft_folder import AdapterError, LowRankAdapter, read_low_rank_adapter
from engine_server.modeling.attention.hook import ForwardContext
from engine_server.modeling.attention.interface import (
    AttentionBackend,
    Staged,
    StepInputs,
    UnsupportedModelError,
)
from engine_server.modeling.attention.states import StateCache, StateShape
from engine_server.modeling.cache.kv_cache import cache_dtype, num_blocks, num_state_slots, pool_sizes
from engine_server.modeling.cache.layout import Layout, lay_out
from engine_server.modeling.cache.ledger import MemoryLedger
from engine_server.modeling.cache.spec import StateSpec
from engine_server.modeling.device.communicator import Communicator
from engine_server.modeling.device.progress import ProgressClock
from engine_server.modeling.device.timing import DeviceTimer
from engine_server.modeling.graphs.staging import NO_CHANGES, Staging
from engine_server.modeling.graphs.step_programs import MOST_COMPARED
from engine_server.modeling.loader.invariance import settle_invariance
from engine_server.modeling.loader.probe import ModelShapes, probe
from engine_server.modeling.platform.choice import choose_platform
from engine_server.modeling.platform.host_memory import keep_freed_memory, return_freed_memory
from engine_server.requests.adapters import LoRARequest

if TYPE_CHECKING:
    from engine_server.core.sampling.kernel_sampler import KernelSampler

logger = logging.getLogger(__name__)


class ModelRunner(Runner):
    """The computation of hidden states and logits on one rank's device, ready for steps once constructed."""

    def __init__(
        self,
        config: EngineConfig,
        ranks: Communicator,
        on_phase: OnPhase = lambda name, seconds: None,
        progress: ProgressClock | None = None,
    ) -> None:
        """Load the model, and allocate everything else before the KV cache, which gets the remaining memory.

        on_phase: called with the name and the duration in seconds of each phase of the start.
        progress: ticks at every layer, and receives the share of the weights that are loaded.
        """
        started = time.monotonic()
        self.config = config
        self.ranks = ranks
        self.timer = DeviceTimer()
        self.platform = choose_platform(config.device_config, ranks.rank, ranks.size)
        self.device = self.platform.device
        self.memory = MemoryLedger(self.platform)
        scheduling = config.scheduler_config
        wanted, rows = scheduling.async_scheduling, scheduling.max_num_seqs
        overlaps = self.platform.asynchronous if wanted is None else wanted
        self.overlapped = overlaps and config.model_config.pooling is None
        self.loaded = LoadedModel(config, self.platform, self.memory, ranks, progress)
        loaded = time.monotonic()
        on_phase("load", loaded - started)
        with self.memory.taking("step buffers") as tensors:
            # Each running request's last token, by its row of the block table, with one extra row for padding.
            self._last_tokens = torch.zeros(rows + 1, dtype=torch.int64, device=self.device)
            self._captured = StepCapture(config, self.platform, ranks, self.loaded)
            tensors += [self._last_tokens, *self._captured.tensors]
        self.head: Head | None = self._make_head() if ranks.rank == 0 else None
        shapes = self._probe()
        layout = lay_out(shapes.layers, config.model_config.max_model_len)
        if shapes.states and config.speculative_config is not None:
            raise UnsupportedModelError(
                f"{type(self.model).__name__} has recurrent layers, whose states can't take drafts back: "
                "speculative_config is not supported for it"
            )
        # None: neither a draft model nor a draft head drafts.
        self.drafting = self._load_drafting(layout, progress)
        state = StateSpec(sum(one.bytes for one in shapes.states))
        num_slots = num_state_slots(config, state.bytes, self.memory)
        num_blocks = self._count_blocks(layout, num_slots * state.bytes)
        sizes = pool_sizes(config.cache_config, scheduling, layout, num_blocks)
        self.backend = self._allocate_cache(layout, sizes)
        invariant = settle_invariance(config.model_config, self.model, self.backend, self.platform, ranks)
        kernels = self._describe_kernels()
        if kernels and ranks.rank == 0:
            logger.info("kernels: %s", kernels)
        self._recurrence = self._allocate_states(shapes.states, num_slots, len(layout.specs))
        self._context = ForwardContext(self.backend, self.timer, progress, self._recurrence)
        block_size, longest = config.cache_config.block_size, config.model_config.max_model_len
        by_pool = [BlockPool(size) for size in sizes]
        pools, specs = [by_pool[number] for number in layout.pools], list(layout.specs)
        if self._recurrence is not None:
            pools.append(BlockPool(num_slots))
            specs.append(state)
        self.table = BlockTable(pools, rows, longest, block_size, specs)
        most_rows = max(scheduling.max_num_rows, MOST_COMPARED)
        self.staging = Staging(
            scheduling.max_num_batched_tokens, most_rows, self.table.ids.shape, self.platform
        )
        if self.drafting is not None:
            self.drafting.allocate(sizes, self.staging, self._context)
        # Tensors whose memory `sleep` freed, with their shapes.
        self._freed: list[tuple[Tensor, torch.Size]] = []
        self._num_forwards = 0
        self._pictures = RankRows(self.loaded.picture_rows)
        # On ranks without a head: the latest forward's, for `join_head`.
        self._kept: ForwardOutput | None = None
        self.capture_graphs()
        self.facts = StartFacts(
            num_blocks,
            layout.token_bytes(self._cache_dtype),
            invariant,
            kernels,
            self.memory.sizes,
            num_slots,
            state.bytes,
            self.loaded.refuses_pictures,
        )
        if ranks.rank == 0:
            left = self.platform.free_memory() >> 20
            logger.info("memory of %s: %s; %d MiB are left", self.device, self.memory, left)
            if self.facts.refuses_pictures and getattr(self.model.config, "vision_config", None) is not None:
                logger.info("pictures are refused: %s", self.facts.refuses_pictures)
        on_phase("warm up", time.monotonic() - loaded)

    @property
    def model(self) -> Any:
        """The model of transformers."""
        return self.loaded.model

    @property
    def caches(self) -> list[Tensor]:
        states = [] if self._recurrence is None else self._recurrence.tensors
        drafts = [] if self.drafting is None else self.drafting.caches
        return [*self.backend.caches, *states, *drafts]

    @property
    def attention(self) -> str:
        return type(self.backend).__name__

    @property
    def embedding_size(self) -> int:
        size: int = self.model.get_input_embeddings().embedding_dim
        return size

    @property
    def stretched(self) -> bool:
        return self.loaded.rope is not None

    def rope_regime(self, request: Request) -> int:
        return self.loaded.rope_regime(request)

    def read_adapter(self, lora: LoRARequest) -> LowRankAdapter:
        adapted = self.loaded.adapted
        if adapted is None:
            raise AdapterError("the weights are unloaded")
        folder = Path(lora.lora_path)
        adapter = read_low_rank_adapter(folder, adapted.max_rank, adapted.max_bytes, adapted.num_weights)
        adapted.check(adapter)
        return adapter

    @torch.inference_mode()
    def forward(self, inputs: ModelInputs) -> ForwardOutput:
        self._num_forwards += 1
        replay = self._captured.replay_for(inputs)
        staged = self.staging.put(inputs.step, inputs.sampling, replay and replay.shape, inputs.table_changes)
        if replay is None:
            states = self._states_eagerly(inputs, staged)
        else:
            with self._context.replay(self.staging.attach(inputs.step, staged)):
                states = self._captured.states(replay)
        output = self._output(states, inputs, staged, replay)
        if self.head is None:
            self._kept = output
        return output

    def logits(self, output: ForwardOutput) -> Iterator[Tensor]:
        assert output.number == self._num_forwards, "the states are those of an earlier forward"
        return self._logits(output)

    @torch.inference_mode()
    def join_head(self, number: int) -> None:
        output, self._kept = self._kept, None
        assert output is not None and output.number == number
        for _ in self.logits(output):
            pass

    @torch.inference_mode()
    def keep(self, output: ForwardOutput, tokens: Tensor) -> None:
        if self.overlapped:
            self._last_tokens.index_copy_(0, output.sampled.long(), tokens)

    def put_adapter(self, slot: int, adapter: LowRankAdapter) -> None:
        assert self.loaded.adapted is not None
        self.loaded.adapted.put(slot, adapter)

    def encode_picture(self, digest: str, inputs: dict[str, Tensor], num_rows: int) -> str | None:
        return self._pictures.add(digest, inputs, num_rows)

    def drop_pictures(self, digests: list[str]) -> None:
        self._pictures.drop(digests)

    def erase(self, block_ids: list[list[int]]) -> None:
        self.backend.erase(block_ids)
        if self.drafting is not None:
            self.drafting.erase(block_ids)

    def sleep(self, level: int) -> None:
        self._captured.release(self._kernel_sampler)
        self._kept = None
        self._pictures.clear()
        tensors = [*self.caches, *self._captured.tensors]
        if self.drafting is not None:
            self.drafting.release()
            tensors += self.drafting.buffers
        if any(tensor.numel() for tensor in tensors):  # otherwise only the weights are awake
            self._freed = [(tensor, tensor.shape) for tensor in tensors]
        for tensor, _ in self._freed:
            tensor.data = tensor.new_empty(0)  # in place, since others hold the tensor too
        for loaded in self._models:
            loaded.unload(keep_on_host=level == 1)
        self.platform.release_cached_memory()
        return_freed_memory()

    def wake(self, tag: str, level: int) -> None:
        if tag == "kv_cache":
            for tensor, shape in self._freed:
                tensor.data = self.platform.zeros(shape, tensor.dtype)
            return
        for loaded in self._models:
            if level == 2:
                loaded.load()
            else:
                loaded.restore()

    def capture_graphs(self) -> None:
        if not self.loaded.generates or self._recurrence is not None:
            return  # a captured step would have the slots of states for constants
        if self.platform.compiles_late:
            self._warm_up()
        scheduling, num_blocks = self.config.scheduler_config, min(one.num_blocks for one in self.table.pools)
        # Each sequence has a block at least.
        most = min(scheduling.max_num_rows, num_blocks)
        num_slots = num_blocks * self.config.cache_config.block_size
        tokens = min(scheduling.max_num_batched_tokens, num_slots)
        if self.platform.captures_any_step:
            decodes = min(self.staging.max_sequences, num_slots)
        else:
            decodes, tokens = most, min(tokens, MOST_MIXED)
        eager = EagerStep(
            self._states, self.loaded.split.logits, self._context, self.staging, decodes, tokens
        )
        steps = [eager]
        if self.loaded.adapted is not None:
            steps.append(eager._replace(adapted=True))
        self._captured.capture(steps, self._kernel_sampler)
        captured = self._captured.bytes
        if self._kernel_sampler is not None:
            captured += self._kernel_sampler.captured_bytes
        self.memory.record("captured steps", captured)
        if self.drafting is not None:
            self.drafting.capture(most)
            self.memory.record("captured steps of drafts", self.drafting.captured_bytes)

    @torch.inference_mode()
    def run_decodes(self, count: int, draft: bool) -> None:
        step = self._captured.example(self.staging, count)
        inputs = ModelInputs(step, np.arange(count), [], [], [], NO_CHANGES, sources=np.arange(count))
        logits = self.draft_logits(inputs) if draft else next(self.logits(self.forward(inputs)))
        logits.max(dim=-1)
        self.platform.synchronize()

    def draft_logits(self, inputs: ModelInputs) -> Tensor:
        assert self.drafting is not None
        return self.drafting.logits(inputs)

    def collective_rpc(
        self, method: str, args: list[Any], kwargs: dict[str, Any]
    ) -> list[tuple[Any, str | None]]:
        def call() -> Any:
            if method.startswith("_"):
                raise ValueError(f"{method} is not a public method")
            return getattr(self, method)(*args, **kwargs)

        return gather_outcomes(self.ranks, self.device, call)

    def _make_head(self) -> Head:
        """Build the sampler, whose tables are as large as any step needs, or the pooler."""
        config, scheduling = self.config.model_config, self.config.scheduler_config
        rows = scheduling.max_num_seqs
        if config.pooling is not None:
            return Pooler(self.loaded, config.pooling, self.platform)
        named = {path: pkgutil.resolve_name(path) for path in config.logits_processors}
        with self.memory.taking("penalty tables") as tensors:
            penalties = Penalties(rows, config.max_model_len, self.loaded.split.vocabulary, self.platform)
            tensors += penalties.tensors
        pipeline = LogitsPipeline(
            [LogitBias(self.platform), CustomProcessors(named), penalties], self.platform
        )
        return Sampler(pipeline, config.logprobs_mode, scheduling.max_num_rows, self.platform, self.timer)

    def _probe(self) -> ModelShapes:
        """Find what each layer keeps of earlier tokens, and reserve the memory of steps."""
        config, longest = self.config.model_config, self.config.model_config.max_model_len
        loaded = self.loaded
        shapes = probe(
            loaded.body, self.model.config.get_text_config(), max(2, min(4, longest)), self.device,
            config.is_encoder, loaded.first_position,
        )  # fmt: skip
        sample = self.head.run_largest if isinstance(self.head, Sampler) else None
        loaded.reserve("largest step", self.config.scheduler_config.max_num_batched_tokens, sample)
        if self._captured.most_tokens:
            loaded.reserve("captured steps", self._captured.most_tokens)
        loaded.reserve_pictures()
        if not self.platform.asynchronous:
            keep_freed_memory()
        return shapes

    def _load_drafting(self, layout: Layout, progress: ProgressClock | None) -> DraftSteps | None:
        """Load the draft model, or bind the draft head, if the engine has one; layout: of the target's cache."""
        draft = self.config.for_draft()
        if draft is None and not self.loaded.has_head:
            return None
        drafting: DraftSteps
        with self.memory.taking("draft buffers") as tensors:
            if draft is not None:
                drafting = DraftModelSteps(draft, self.platform, self.memory, self.ranks, progress, layout)
            else:
                drafting = DraftHeadSteps(
                    self.config, self.platform, self.memory, self.ranks, self.loaded, layout
                )
            tensors += drafting.buffers
        drafting.reserve()
        return drafting

    @property
    def _cache_dtype(self) -> torch.dtype:
        return cache_dtype(self.config.cache_config, self.model.dtype, self.platform)

    @property
    def _models(self) -> list[LoadedModel]:
        return [self.loaded] if self.drafting is None else [self.loaded, *self.drafting.models]

    def _count_blocks(self, layout: Layout, states: int) -> int:
        """Return the number of blocks of the whole context. states: the bytes of recurrent layers' states."""
        model_config = self.config.model_config
        least = 1 if model_config.fit_max_model_len else model_config.max_model_len
        layouts = [(layout, self._cache_dtype)]
        if self.drafting is not None:
            layouts.append((self.drafting.layout, self.drafting.dtype))
        count = num_blocks(self.config, layouts, self.memory, least, states)
        return self.ranks.least(count, self.device) if self.ranks.size > 1 else count

    def _allocate_cache(self, layout: Layout, sizes: list[int]) -> AttentionBackend:
        """Allocate the cache's blocks; an encoder has none."""
        if not layout.shapes:
            return self.platform.step_attention()
        size = self.config.cache_config.block_size
        with self.memory.taking("KV cache") as tensors:
            backend = self.platform.paged_attention(layout, sizes, size, self._cache_dtype)
            tensors += backend.caches
        return backend

    def _allocate_states(self, shapes: Sequence[StateShape], slots: int, kind: int) -> StateCache | None:
        """Allocate the states of recurrent layers. kind: theirs in the block table."""
        if not shapes:
            return None
        size = self.config.cache_config.block_size
        with self.memory.taking("states") as tensors:
            states = StateCache(shapes, slots, kind, size, self.platform.zeros)
            tensors += states.tensors
        return states

    def _describe_kernels(self) -> str:
        """Return which kernels were chosen, and with which launch settings they attend; empty without any."""
        kernels = self.platform.compiled_by()
        if kernels is None:
            return ""
        heads = getattr(self.model.config.get_text_config(), "num_attention_heads", self.ranks.size)
        attention = self.backend.describe(heads // self.ranks.size, self.model.dtype)
        return f"{kernels}, attention by {attention}"

    @property
    def _kernel_sampler(self) -> "KernelSampler | None":
        return self.head.kernels if isinstance(self.head, Sampler) else None

    def _warm_up(self) -> None:
        """Compute a prompt and a decode with a long context, to compile their kernels; discard the results."""
        for tokens, context in ((2, 2), (1, self.config.model_config.max_model_len)):
            step = StepInputs.of([self.staging.rows], [tokens], [context], len(self.table.ids))
            sampling = np.zeros(1, dtype=np.int64)
            inputs = ModelInputs(step, sampling, [], [], [], NO_CHANGES)
            staged = self.staging.put(step, sampling)
            states = self._states_eagerly(inputs, staged)
            logits = self._logits_eagerly(states.index_select(0, staged.logit_rows), None)
            if self._kernel_sampler:
                self._kernel_sampler.sample(logits, captured=False)

    def _states(self, step: StepInputs, staged: Staged) -> Tensor:
        """Compute the hidden states [T, hidden] of a step of tokens alone."""
        return self._states_eagerly(ModelInputs(step, EMPTY, [], [], [], NO_CHANGES), staged)

    @torch.inference_mode()
    def _states_eagerly(self, inputs: ModelInputs, staged: Staged) -> Tensor:
        slots = None if inputs.step.adapters is None else staged.adapters
        with self.loaded.apply_adapters(slots), self._context.run(self.staging.attach(inputs.step, staged)):
            arguments = self._arguments(inputs, staged)
            if self.drafting is None:
                return self.loaded.states(arguments)
            return self.drafting.target_states(self.loaded, arguments)

    def _output(
        self, states: Tensor, inputs: ModelInputs, staged: Staged, replay: Replay | None
    ) -> ForwardOutput:
        """Choose the states of which logits are computed, or the pooler's."""
        number, count = self._num_forwards, len(inputs.sampling)
        sampled, sampling = staged.sampling[:count], staged.logit_rows[:count]
        if not self.loaded.generates:
            return ForwardOutput(number, states, (), (), sampled, None)
        chunks = [self.platform.to_device(rows) for rows in inputs.chunks]
        slots: list[Tensor] = []
        if inputs.step.adapters is not None:
            slots = [staged.adapters.index_select(0, rows) for rows in (sampling, *chunks)]
        rows = states[:count] if inputs.is_plain_decode else states.index_select(0, sampling)
        return ForwardOutput(number, rows, [states[chunk] for chunk in chunks], slots, sampled, replay)

    def _logits(self, output: ForwardOutput) -> Iterator[Tensor]:
        slots: Sequence[Tensor | None] = output.slots or [None] * (1 + len(output.prompt_rows))
        replayed = None
        if output.replay is not None:
            with self.timer.measure():
                replayed = self._captured.logits(output.replay, len(output.rows))
        yield self._logits_eagerly(output.rows, slots[0]) if replayed is None else replayed
        for rows, own in zip(output.prompt_rows, slots[1:], strict=True):
            yield self._logits_eagerly(rows, own)

    @torch.inference_mode()
    def _logits_eagerly(self, states: Tensor, slots: Tensor | None) -> Tensor:
        """Compute logits [n, vocabulary] of hidden states [n, hidden]. slots: int32 [n], those of their adapters."""
        with self.timer.measure(), self.loaded.apply_adapters(slots):
            return self.loaded.split.logits(states)

    def _arguments(self, inputs: ModelInputs, staged: Staged) -> dict[str, Any]:
        """Return the model's arguments: tokens, or embeddings if a prompt was given as embeddings."""
        token_ids, positions = staged.token_ids.long(), staged.positions.long()
        if self.overlapped:
            latest = self._last_tokens[(-1 - token_ids).clamp(min=0)]
            token_ids = torch.where(token_ids < 0, latest, token_ids)
        if self.overlapped and self.ranks.size > 1:  # only the first rank samples
            self.ranks.broadcast(token_ids)
        arguments = {
            "input_ids": token_ids.unsqueeze(0),
            "position_ids": (positions + self.loaded.first_position).unsqueeze(0),
            "use_cache": False,
        }
        if inputs.token_type_ids:
            arguments["token_type_ids"] = self.platform.to_device([inputs.token_type_ids])
        if inputs.embeds:
            embeds = self.model.get_input_embeddings()(arguments.pop("input_ids"))
            for span in inputs.embeds:
                own = self._pictures.of(span) if span.rows is None else self.platform.to_device(span.rows)
                embeds[0, span.start : span.start + span.length] = own
            arguments["inputs_embeds"] = embeds
        return arguments
