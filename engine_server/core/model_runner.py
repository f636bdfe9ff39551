"""The forward: from the scheduler's batch to logits, in one flat call."""

import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from engine_server.config import EngineConfig
from engine_server.core.cache.block_pool import BlockPool
from engine_server.core.cache.block_table import BlockTable
from engine_server.core.heads.prompt_logprobs import kept_output
from engine_server.core.model_inputs import NOTHING, ModelInputs, model_inputs
from engine_server.core.scheduling.request import Request
from engine_server.core.scheduling.scheduler import Batch
from engine_server.modeling.attention.hook import ForwardContext
from engine_server.modeling.attention.interface import AttentionBackend, Staged, StepInputs
from engine_server.modeling.attention.step_attention import StepAttention
from engine_server.modeling.communicator import Communicator
from engine_server.modeling.device_time import DeviceTimer
from engine_server.modeling.graphs.decode_graphs import DecodeGraphs
from engine_server.modeling.layers.rope import sequence_rope
from engine_server.modeling.loading.model_loader import first_position, load_model
from engine_server.modeling.loading.probe import largest_step, probe
from engine_server.modeling.memory.cache_layout import lay_out
from engine_server.modeling.memory.device_memory import measured_memory
from engine_server.modeling.memory.host_memory import keep_freed_memory, return_freed_memory
from engine_server.modeling.memory.kv_cache import cache_dtype, num_blocks
from engine_server.modeling.platform.choice import choose_platform
from engine_server.modeling.progress import ProgressClock
from engine_server.modeling.staging import NO_CHANGES, Staging

logger = logging.getLogger(__name__)


class ModelRunner:
    """Holds the model; `prepare` gives it its KV cache."""

    replayed = False  # whether the latest step was, from a CUDA graph

    def __init__(
        self,
        config: EngineConfig,
        ranks: Communicator,
        broadcast: Callable[..., None] = lambda method, *args: None,
        progress: ProgressClock | None = None,
    ) -> None:
        """Load the model, or this rank's part of it.

        broadcast: has the other ranks' runners call the method of this name with these arguments.
        progress: ticks at every layer.
        """
        self.config = config
        self.timer = DeviceTimer()
        self.progress = progress or ProgressClock()
        self.ranks = ranks
        self._broadcast = broadcast
        self.platform = choose_platform(config.device_config, ranks.rank, ranks.size)
        self.device = self.platform.device
        wanted = config.scheduler_config.async_scheduling
        self.overlapped = (self.platform.asynchronous if wanted is None else wanted) and (
            config.model_config.pooling is None
        )
        # Each running request's last token, by its row of the block table; one row more for what fills a step up.
        self._last_tokens = torch.zeros(
            config.scheduler_config.max_num_seqs + 1, dtype=torch.int64, device=self.device
        )
        # Caches whose memory sleep has freed, with their shapes.
        self._freed: list[tuple[Tensor, torch.Size]] = []
        self.graphs: DecodeGraphs | None = None
        # From logits to tokens and what is told of them, on the device: captured behind the forward.
        self.draw: Callable[[Tensor], Sequence[Tensor]] | None = None
        self.drawn: list[Tensor] | None = None  # what it gave in the last step, where that was captured
        self.load()

    def load(self) -> None:
        """Read the weights; once more where they were dropped."""
        config = self.config
        with measured_memory("weights", self.platform):
            self.model = load_model(config.model_config, config.load_config, self.platform, self.ranks)
        self.rope = sequence_rope(self.model)
        self.first_position = first_position(self.model, config.model_config.max_model_len)
        # What computes hidden states alone, where that is all that is wanted.
        self.body: Any = self.model if config.model_config.pooling is None else self.model.base_model

    def regime(self, request: Request) -> int:
        """What a request's keys depend on besides its tokens."""
        return self.rope.regime(request.num_prompt, len(request.token_ids)) if self.rope else 0

    def sleep(self, level: int) -> None:
        """Free the cache, and the weights: at level 1 the host keeps them, at level 2 nobody does."""
        self._broadcast("sleep", level)
        self.graphs = None  # they know where the weights and the cache were
        if any(cache.numel() for cache in self.backend.caches):  # else only the weights are awake
            self._freed = [(cache, cache.shape) for cache in self.backend.caches]
        for cache, _ in self._freed:
            cache.data = cache.new_empty(0)  # in place, since the backend holds it too
        if level == 2:
            for name in ("model", "body"):
                self.__dict__.pop(name, None)
        else:
            nn.Module.to(self.model, "cpu")  # transformers' own is not typed
        self.platform.release_cached_memory()
        return_freed_memory()

    def wake(self, tag: str, level: int) -> None:
        """Bring back "kv_cache", with nothing in it, or "weights", which slept at `level`."""
        self._broadcast("wake", tag, level)
        if tag == "kv_cache":
            for cache, shape in self._freed:
                cache.data = self.platform.zeros(shape, cache.dtype)
        elif level == 2:
            self.load()
        else:
            nn.Module.to(self.model, self.device)

    def prepare(self) -> BlockTable:
        """Probe the model, warm up with the largest step, and make the cache of what that leaves."""
        self._broadcast("prepare")
        config, budget = self.config, self.config.scheduler_config.max_num_batched_tokens
        longest, generates = config.model_config.max_model_len, config.model_config.pooling is None
        layers = probe(
            self.body, self.model.config.get_text_config(), max(2, min(4, longest)), self.device,
            generates, config.model_config.is_encoder, self.first_position,
        )  # fmt: skip
        dtype = cache_dtype(config.cache_config, self.model.dtype, self.platform)
        block_size, rows = config.cache_config.block_size, config.scheduler_config.max_num_seqs
        layout = lay_out(layers, longest)
        if self.platform.transient_memory() is not None:
            with measured_memory("largest step", self.platform):
                largest_step(
                    self.body, budget, longest, generates * min(rows, budget), self.device, self.first_position
                )  # fmt: skip
        else:
            keep_freed_memory()
        least = 1 if config.model_config.fit_max_model_len else longest
        self.num_blocks = num_blocks(config.cache_config, layout, dtype, self.platform, least)
        if self.ranks.size > 1:
            self.num_blocks = self.ranks.least(self.num_blocks, self.device)
        pool = BlockPool(self.num_blocks * len(layout.windows))
        self.backend: AttentionBackend = StepAttention(self.platform.writes_scores)
        if layers:  # that keep something: an encoder's don't
            with measured_memory("KV cache", self.platform):
                self.backend = self.platform.paged_attention(layout, pool.num_blocks, block_size, dtype)
            self.backend.invariant = config.model_config.batch_invariant
        self.context = ForwardContext(self.backend, self.timer, self.progress)
        self.table = BlockTable(pool, rows, longest, block_size, layout.windows)
        self.staging = Staging(budget, self.table.ids.shape, self.platform)
        return self.table

    def erase(self, block_ids: list[int]) -> None:
        """Make zeros of what blocks hold."""
        self._broadcast("erase", block_ids)
        self.backend.erase(block_ids)

    def execute(self, batch: Batch) -> Tensor:
        """Logits [n, vocabulary] for the last token of each of the n requests that sample, in the batch's order.

        Of a pooling model, the hidden states [T, hidden] of all the step's tokens.
        """
        inputs, chunks = model_inputs(batch, self.table, self.rope is not None)
        return self.forward(inputs, lambda number, logits: chunks[number].report(logits))

    @torch.inference_mode()
    def forward(
        self, inputs: ModelInputs, report: Callable[[int, Tensor], None] = lambda number, logits: None
    ) -> Tensor:
        """What `execute` gives; `report` takes the logits of each of the prompts' chunks, with its number."""
        self._broadcast("forward", inputs)
        self.platform.follow_load()
        size = self._captured_size(inputs)
        self.replayed = size is not None
        staged = self._staged = self.staging.put(
            inputs.step, inputs.sampling, size or 0, inputs.table_changes
        )
        if size is not None:
            assert self.graphs is not None
            with self.timer.measure():
                logits, *drawn = (part[: len(inputs.sampling)] for part in self.graphs.replay(size))
            self.drawn = drawn or None
            return logits
        self.drawn = None
        step = inputs.step._replace(staged=staged, tables=list(self.staging.tables))
        arguments = self.arguments(inputs, staged)
        with self.context.run(step):
            if self.config.model_config.pooling is not None:
                states: Tensor = self.body(**arguments).last_hidden_state[0]
                return states
            if not inputs.chunks:
                return self._logits(arguments, staged.logit_rows)
            with kept_output(self.model.get_decoder()):  # type: ignore[no-untyped-call]
                logits = self._logits(arguments, staged.logit_rows)
                for number, rows in enumerate(inputs.chunks):
                    report(number, self._logits(arguments, torch.from_numpy(rows).to(self.device)))
        return logits

    @torch.inference_mode()
    def keep(self, tokens: Tensor) -> None:
        """Remember the new tokens of those who sample in this step, [n] on the device, for the next one."""
        self._last_tokens.index_copy_(0, self._staged.sampling[: len(tokens)].long(), tokens)

    def capture_graphs(self) -> None:
        """Capture decode steps as CUDA graphs, where that can be done; once more after a sleep."""
        self._broadcast("capture_graphs")
        config = self.config
        self.graphs = None
        if not self.platform.captures_graphs or config.model_config.pooling is not None:
            return
        self._warm_up()
        if not config.model_config.enforce_eager and self.rope is None:  # which asks the host for lengths
            most = config.scheduler_config.max_num_seqs
            self.staging.put(NOTHING, NOTHING.starts, most)
            try:
                self.graphs = DecodeGraphs(self._decode, most)
            except RuntimeError as error:
                if self.ranks.size > 1:  # the others are in the midst of a collective
                    raise
                logger.warning("decode is not captured as CUDA graphs, and is slower: %s", error)

    def _warm_up(self) -> None:
        """A prompt and a long context's decode, kept nowhere: kernels are compiled when they are first launched."""
        for tokens, context in ((2, 2), (1, self.config.model_config.max_model_len)):
            none, one = np.zeros(tokens, dtype=np.int64), np.zeros(1, dtype=np.int64)
            nowhere, rows = [none - 1] * len(self.table.ids), one + self.staging.rows
            step = StepInputs(none, none, nowhere, one, one + tokens, one + context, [], rows, one)
            self._run(step, self.staging.put(step, one))

    def _decode(self, size: int) -> list[Tensor]:
        """What is captured: `size` sequences' logits from what is staged, and what is drawn from them."""
        return self._run(NOTHING, self.staging.decodes(size))

    @torch.inference_mode()
    def _run(self, step: StepInputs, staged: Staged) -> list[Tensor]:
        """The logits of what is staged, and what is drawn from them."""
        inputs = ModelInputs(step._replace(staged=staged), NOTHING.starts, [], [], [], NO_CHANGES)
        with self.context.run(inputs.step):
            logits = self._logits(self.arguments(inputs, staged), staged.logit_rows)
        return [logits, *(self.draw(logits) if self.draw else ())]

    def _captured_size(self, inputs: ModelInputs) -> int | None:
        """Which captured step could do this one."""
        count = len(inputs.step.starts)
        if self.graphs is None or inputs.chunks or inputs.token_type_ids or inputs.embeds:
            return None
        decodes = count == len(inputs.step.token_ids) == len(inputs.sampling)
        return self.graphs.size_for(count) if decodes else None

    def _logits(self, arguments: dict[str, Any], rows: Tensor) -> Tensor:
        """Logits [n, vocabulary] in the n given rows of the step."""
        output = self.model(**arguments, logits_to_keep=rows.long())
        logits: Tensor = output.logits[0]
        return logits

    def arguments(self, inputs: ModelInputs, staged: Staged) -> dict[str, Any]:
        """What the model is called with: tokens; or embeddings, where a prompt came as some."""
        token_ids, positions = staged.token_ids.long(), staged.positions.long()
        token_ids = torch.where(token_ids < 0, self._last_tokens[(-1 - token_ids).clamp(min=0)], token_ids)
        if self.overlapped and self.ranks.size > 1:  # of which the first alone samples
            self.ranks.broadcast(token_ids)
        arguments = {
            "input_ids": token_ids.unsqueeze(0),
            "position_ids": (positions + self.first_position).unsqueeze(0),
            "use_cache": False,
        }
        if inputs.token_type_ids:
            arguments["token_type_ids"] = torch.tensor([inputs.token_type_ids], device=self.device)
        if inputs.embeds:
            embeds = self.body.get_input_embeddings()(arguments.pop("input_ids"))
            for start, own in inputs.embeds:
                embeds[0, start : start + len(own)] = own
            arguments["inputs_embeds"] = embeds
        return arguments
