"""One rank's steps of a draft model."""

from torch import Tensor

from engine_server.config import EngineConfig
from engine_server.core.drafting.draft_steps import DraftSteps
from engine_server.core.loaded_model import LoadedModel
from engine_server.modeling.attention.interface import Staged, UnsupportedModelError
from engine_server.modeling.cache.layout import Layout, lay_out
from engine_server.modeling.cache.ledger import MemoryLedger
from engine_server.modeling.cache.spec import FULL
from engine_server.modeling.device.communicator import Communicator
from engine_server.modeling.device.progress import ProgressClock
from engine_server.modeling.loader.probe import probe
from engine_server.modeling.platform.interface import Platform

# Tokens of the forward that shows the shapes of the layers' caches.
PROBED_TOKENS = 2


class DraftModelSteps(DraftSteps):
    """The steps of a smaller model that drafts."""

    def __init__(
        self,
        config: EngineConfig,
        platform: Platform,
        memory: MemoryLedger,
        ranks: Communicator,
        progress: ProgressClock | None,
        target: Layout,
    ) -> None:
        """Load the model. config: the draft's own; target: the layout of the target's cache.

        Raises UnsupportedModelError.
        """
        loaded = LoadedModel(config, platform, memory, ranks, progress, "draft model")
        if loaded.rope is not None:
            raise UnsupportedModelError(
                "the draft model's rope changes with a sequence's length; it can't continue a cache with another rope"
            )
        shapes = probe(
            loaded.body, loaded.model.config.get_text_config(), PROBED_TOKENS, platform.device,
            first_position=loaded.first_position,
        )  # fmt: skip
        if shapes.states:
            raise UnsupportedModelError(
                "the draft model has recurrent layers, whose states can't take drafts back"
            )
        # Its layers may attend to less than the cache keeps.
        layers = [shape and shape._replace(spec=FULL) for shape in shapes.layers]
        layout = lay_out(layers, config.model_config.max_model_len)
        super().__init__(config, platform, memory, ranks, loaded, layout, target, loaded.split.hidden_size)
        self.models = [loaded]

    def _reserve(self, part: str, num_tokens: int) -> None:
        self._loaded.reserve(part, num_tokens)

    def _states(self, staged: Staged) -> Tensor:
        positions = staged.positions.long() + self._loaded.first_position
        arguments = {
            "input_ids": staged.token_ids.long().unsqueeze(0),
            "position_ids": positions.unsqueeze(0),
            "use_cache": False,
        }
        return self._loaded.states(arguments).index_select(0, staged.logit_rows)

    def _logits(self, states: Tensor) -> Tensor:
        return self._loaded.split.logits(states)
