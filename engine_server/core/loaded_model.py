"""The model's weights on one rank's device."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from engine_server.config import EngineConfig, PoolingConfig
from engine_server.core.scheduling.request import Request
from engine_server.modeling.adapters.adapted_model import AdaptedModel
from engine_server.modeling.cache.ledger import MemoryLedger
from engine_server.modeling.device.communicator import Communicator
from engine_server.modeling.device.progress import ProgressClock
from engine_server.modeling.drafting.draft_head import DraftHead, collect_states
from engine_server.modeling.drafting.eagle3_folder import load_eagle3
from engine_server.modeling.drafting.mtp_checkpoint import load_mtp
from engine_server.modeling.layers.rope import SequenceRope, sequence_rope
from engine_server.modeling.layers.weight_layer import all_tensors
from engine_server.modeling.loader.encoder import encoder_aside, remove_encoder
from engine_server.modeling.loader.model_loader import first_position, load_model
from engine_server.modeling.loader.probe import Probe, run
from engine_server.modeling.model.answer_scorer import AnswerScorer
from engine_server.modeling.model.embedding_modules import load_embedding_modules
from engine_server.modeling.model.picture_encoder import picture_rows
from engine_server.modeling.model.picture_trial import refusal_by_trial
from engine_server.modeling.model.split_classifier import SplitClassifier
from engine_server.modeling.model.split_model import SplitModel
from engine_server.modeling.pictures.largest import largest_inputs
from engine_server.modeling.platform.interface import Platform


class LoadedModel:
    """A model of transformers that gives hidden states and logits or scores, with its draft head if it has one.

    The weights can be unloaded.
    """

    def __init__(
        self,
        config: EngineConfig,
        platform: Platform,
        memory: MemoryLedger,
        ranks: Communicator,
        clock: ProgressClock | None = None,
        part: str = "weights",
    ) -> None:
        """Load the model, or this rank's part of it; the clock receives the progress.

        part: that of the memory as which the weights count.
        """
        self._clock = clock
        self._config = config
        self._platform = platform
        self._memory = memory
        self._part = part
        self._ranks = ranks
        self.generates = config.model_config.pooling is None
        self._model: PreTrainedModel | None = None
        self._split: SplitModel | None = None
        self._classifier: SplitClassifier | AnswerScorer | None = None
        # The layers after pooling; None: there are none.
        self._modules: nn.Sequential | None = None
        self._head: DraftHead | None = None
        # The layers that adapters change; None: the engine takes none.
        self.adapted: AdaptedModel | None = None
        self.rope: SequenceRope | None = None
        # Position of a sequence's first token.
        self.first_position = 0
        # Why the model takes no pictures; empty if it takes them.
        self.refuses_pictures = ""
        self.load()

    @property
    def model(self) -> PreTrainedModel:
        assert self._model is not None, "the weights are unloaded"
        return self._model

    @property
    def is_loaded(self) -> bool:
        return self._model is not None

    @property
    def body(self) -> Any:
        """The module that the largest step runs: with logits if the model generates."""
        return self.model if self.generates else self.model.base_model

    @property
    def split(self) -> SplitModel:
        assert self._split is not None, "the model pools, or its weights are unloaded"
        return self._split

    @property
    def has_head(self) -> bool:
        """True if the model has a draft head, also while it is unloaded."""
        settings = self._config.speculative_config
        return settings is not None and settings.has_head

    @property
    def head(self) -> DraftHead:
        assert self._head is not None, "the model has no draft head, or its weights are unloaded"
        return self._head

    def load(self) -> None:
        """Read the weights, also after they were unloaded."""
        config = self._config
        with self._memory.taking(self._part) as tensors:
            self._model = load_model(
                config.model_config, config.load_config, self._platform, self._ranks, self._clock
            )
            self.refuses_pictures = self._picture_refusal(self._model)
            if self.refuses_pictures:
                remove_encoder(self._model)
            with encoder_aside(self._model) as encoder:
                tensors += all_tensors(self._model)
            if config.model_config.pooling is not None and config.model_config.pooling.modules:
                self._modules = self._load_modules(config.model_config.pooling)
                tensors += self._modules.parameters()
        if encoder:
            with self._memory.taking("encoder of pictures") as tensors:
                tensors += chain.from_iterable(all_tensors(part.module) for part in encoder)
        if self.has_head:
            with self._memory.taking("draft head") as tensors:
                self._head = self._load_head(self._model)
                tensors += all_tensors(self._head.module)
        self.rope = sequence_rope(self._model)
        self.first_position = first_position(self._model, config.model_config.max_model_len)
        pooling = config.model_config.pooling
        if pooling is None:
            self._split = SplitModel(self._model, self.first_position)
        elif pooling.score_tokens:
            self._classifier = AnswerScorer(self._model, self.first_position)
        elif pooling.num_labels is not None:
            self._classifier = SplitClassifier(self._model, pooling.num_labels, self.first_position)
        lora = config.lora_config
        if lora is not None:
            with self._memory.taking("adapters") as tensors, encoder_aside(self._model):
                add = self._platform.module_kernels.add_low_rank
                self.adapted = AdaptedModel(self._model, self.body, lora.max_loras, lora.max_lora_rank, add)
                tensors += self.adapted.tensors

    def unload(self, keep_on_host: bool) -> None:
        """Free the weights' device memory; `restore` needs the copy on the host, `load` doesn't."""
        if keep_on_host:
            self._move("cpu")
        else:
            self._model = self._split = self._classifier = self._modules = self._head = self.adapted = None

    def restore(self) -> None:
        """Copy the weights from the host back to the device."""
        self._move(self._platform.device)

    def apply_adapters(self, slots: Tensor | None) -> AbstractContextManager[None]:
        """Apply the adapters in `slots`, int32 [rows], to the rows of a forward; None: no row has one."""
        return nullcontext() if self.adapted is None else self.adapted.applied(slots)

    def reserve(self, part: str, num_tokens: int, sample: Callable[[Tensor], object] | None = None) -> None:
        """Reserve, for a part of the memory, what a step takes while it runs, if the device measures that.

        Its prompts are as long as possible, and all have adapters if any has. sample: the sampler's work on logits
        [n, vocabulary]; None: there is none.
        """
        if not self._memory.measures:
            return
        num_logits = min(self._config.scheduler_config.max_num_rows, num_tokens) if self.generates else 0
        with self._memory.running(part):
            self.run_step(num_tokens, num_logits, sample)

    def reserve_pictures(self) -> None:
        """Reserve the memory of the rows of pictures: as many as the longest prompt may have.

        Also reserve what the largest picture takes while it is encoded, if the device measures that.
        """
        if self.refuses_pictures:
            return
        config = self._config.model_config
        embedding: Any = self.model.get_input_embeddings()
        size = config.max_model_len * embedding.embedding_dim * self.model.dtype.itemsize
        self._memory.keep_free("rows of pictures", size)
        if not self._memory.measures:
            return
        for inputs in largest_inputs(Path(config.path), config.picture_options):
            # A picture that the encoder can't take is refused in requests.
            with self._memory.running("largest picture"), suppress(ValueError):
                self.picture_rows(inputs)

    @torch.inference_mode()
    def run_step(
        self, num_tokens: int, num_logits: int, sample: Callable[[Tensor], object] | None = None
    ) -> None:
        """Compute the hidden states of a step, and logits of some of its tokens for `sample`; discard the results."""
        longest, device = self._config.model_config.max_model_len, self._platform.device
        positions = np.resize(np.arange(longest), num_tokens) + self.first_position
        decoder = self.split.decoder if self.generates else self.body

        def compute() -> Tensor:
            return run(decoder, Probe(), positions, device, {})[0]

        with self._largest_adapters(num_tokens):
            states = self.states_for_drafts(compute)[0] if self.has_head else compute()
        if num_logits:
            with self._largest_adapters(num_logits):
                logits = self.split.logits(states[:num_logits])
            if sample is not None:
                sample(logits)

    def rope_regime(self, request: Request) -> int:
        """Return the number that a request's keys depend on besides its tokens."""
        return self.rope.regime(request.num_prompt, len(request.token_ids)) if self.rope else 0

    def picture_rows(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return the embeddings [rows, hidden] that take the places of a picture's placeholders.

        inputs: by name, what the processor of the model's pictures returns for one. Raises ValueError for those that
        the encoder can't take.
        """
        on_device = {name: self._platform.to_device(tensor) for name, tensor in inputs.items()}
        return picture_rows(self.model, on_device)

    def states(self, arguments: dict[str, Any]) -> Tensor:
        """Return the hidden states [T, hidden] of the step's tokens."""
        if self.generates:
            return self.split.states(arguments)
        states: Tensor = self.body(**arguments).last_hidden_state[0]
        return states

    def states_for_drafts(self, compute: Callable[[], Tensor]) -> tuple[Tensor, Tensor]:
        """Return the hidden states [T, hidden] that `compute` returns, and those from which the head's chains start."""
        with collect_states(self.model, self.head.aux_layers) as auxiliary:
            states = compute()
        return states, self.head.prepare(states, auxiliary)

    def scores(self, pooled: Tensor) -> Tensor:
        """Return a classifier's scores, float32 [labels], of a pooled state [hidden]."""
        assert self._classifier is not None, "the model doesn't classify, or its weights are unloaded"
        return self._classifier.scores(pooled)

    def project(self, pooled: Tensor) -> Tensor:
        """Return the embedding, float32 [dimensions], of a pooled state, float32 [hidden]."""
        vector: Tensor = pooled if self._modules is None else self._modules(pooled)
        return vector

    def _picture_refusal(self, model: PreTrainedModel) -> str:
        config = self._config.model_config
        return config.refuses_pictures or refusal_by_trial(model, Path(config.path))

    def _largest_adapters(self, num_rows: int) -> AbstractContextManager[None]:
        return nullcontext() if self.adapted is None else self.adapted.largest(num_rows)

    def _load_head(self, model: PreTrainedModel) -> DraftHead:
        """Read the draft head that the settings name, or the one in the model's own files. Raises ValueError."""
        config, settings = self._config, self._config.speculative_config
        if settings is not None and settings.head_path is not None:
            folder = Path(settings.head_path)
            return load_eagle3(folder, model, config.model_config, config.load_config, self._platform)
        return load_mtp(model, config.model_config, config.load_config, self._platform)

    def _load_modules(self, pooling: PoolingConfig) -> nn.Sequential:
        config = self._config.model_config
        seed = config.seed if self._config.load_config.load_format == "dummy" else None
        return load_embedding_modules(Path(config.path), pooling.modules, self._platform.device, seed)

    def _move(self, device: torch.device | str) -> None:
        head = None if self._head is None else self._head.module
        for module in [part for part in (self.model, self._modules, head) if part is not None]:
            nn.Module.to(module, device)  # transformers' own is not typed
