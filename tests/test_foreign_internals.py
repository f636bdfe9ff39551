"""Where we rely on what libraries do within: without it nothing fails, and our own code never runs.

Private methods that our classes override, and the ways in which we enter transformers' loading: see "How our classes
receive weights" in docs/engine.md.
"""

import importlib
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tiny_models import TINY
from torch import Tensor, nn
from transformers import PreTrainedModel, initialization
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from engine_server import EngineArgs
from engine_server.modeling.device.communicator import Communicator
from engine_server.modeling.device.progress import ProgressClock
from engine_server.modeling.formats import quantized_tensor
from engine_server.modeling.formats.checkpoints.stored import StoredTensor, StoredWeight, stored_tensors
from engine_server.modeling.formats.codecs import FLOAT, INT8
from engine_server.modeling.formats.dense import DenseFormat
from engine_server.modeling.formats.grouped import Form, GroupedFormat
from engine_server.modeling.formats.quantized import QuantizedFormat
from engine_server.modeling.formats.rounding import rounded_to_integers
from engine_server.modeling.formats.stacked import StackedFormat
from engine_server.modeling.layers.linear import Linear
from engine_server.modeling.layers.weight_layer import WeightLayer
from engine_server.modeling.loader import model_loader
from engine_server.modeling.loader.passes import LoadPlan, verified_choices
from engine_server.modeling.loader.progress import reported_progress
from engine_server.modeling.platform.cpu import CpuPlatform
from engine_server.modeling.recurrence.convolution import Convolution
from engine_server.modeling.recurrence.delta_rule import DeltaRule
from engine_server.modeling.recurrence.function import RecurrentFunction
from engine_server.modeling.recurrence.state_space import StateSpace
from engine_server.server.http.protocol import Connection

pytestmark = pytest.mark.transformers
TRANSFORMERS = f"transformers {version('transformers')}"
SIZES = TINY | {"vocab_size": 64, "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 1}


@pytest.mark.parametrize(
    ("library", "foreign", "ours", "name"),
    [
        ("torch", nn.Module, WeightLayer, "_apply"),
        ("uvicorn", HttpToolsProtocol, Connection, "_start_asgi_task"),
    ],
)
def test_overridden_private_method_exists_and_is_called(
    library: str, foreign: type, ours: type, name: str
) -> None:
    method = f"{foreign.__name__}.{name} of {library} {version(library)}, which {ours.__name__} overrides,"
    assert issubclass(ours, foreign)
    assert name in vars(ours)
    assert hasattr(foreign, name), f"{method} is gone"
    assert f".{name}(" in inspect.getsource(foreign), f"{method} is called no more"
    theirs, overriding = (len(inspect.signature(getattr(kind, name)).parameters) for kind in (foreign, ours))
    assert theirs == overriding, f"{method} takes {theirs} parameters instead of {overriding}"


@pytest.mark.parametrize(
    ("module", "mixer", "functions"),
    [
        ("qwen3_5", "Qwen3_5GatedDeltaNet", (Convolution, DeltaRule)),
        ("lfm2", "Lfm2ShortConv", (Convolution,)),
        ("granitemoehybrid", "GraniteMoeHybridMambaLayer", (Convolution, StateSpace)),
        ("nemotron_h", "NemotronHMamba2Mixer", (Convolution, StateSpace)),
    ],
)
def test_mixer_calls_the_functions_that_ours_replace_by_globals_of_its_forward(
    module: str, mixer: str, functions: tuple[type[RecurrentFunction], ...]
) -> None:
    modeling = importlib.import_module(f"transformers.models.{module}.modeling_{module}")
    forward = inspect.unwrap(getattr(modeling, mixer).forward)
    for ours in functions:
        name = f"{ours.replaces} of {mixer} in {TRANSFORMERS}, which {ours.__name__} replaces,"
        assert ours.replaces in forward.__code__.co_names, f"{name} is called no more"
        theirs = inspect.signature(inspect.unwrap(getattr(modeling, ours.replaces))).parameters
        named = [one.name for one in inspect.signature(ours.__call__).parameters.values()]
        missing = [
            one for one in theirs if one not in named and theirs[one].default is inspect.Parameter.empty
        ]
        assert set(missing) <= {"kwargs"}, f"{name} has parameters that are unknown: {missing}"


@dataclass
class Loading:
    """What our code sees while transformers loads a model."""

    model: Any = None
    # For each weight that a linear layer receives: how many had been read, and the progress.
    received: list[tuple[int, float]] = field(default_factory=list)
    # Devices of the parameters when our passes replace modules.
    devices: set[str] = field(default_factory=set)
    # Parameters that transformers fills with random numbers.
    filled: list[Tensor] = field(default_factory=list)
    read: int = 0

    def counted(self, tensors: Mapping[str, Any]) -> dict[str, Any]:
        return {name: Counted(tensor, self) for name, tensor in tensors.items()}


class Counted:
    """A stored tensor that counts when it is read."""

    def __init__(self, stored: StoredTensor | StoredWeight, loading: Loading) -> None:
        self._stored, self._loading = stored, loading

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stored, name)

    def __getitem__(self, index: Any) -> Tensor:
        self._loading.read += 1
        return self._stored[index]


def load(folder: Path, weights: Mapping[str, Any] | None, patch: pytest.MonkeyPatch) -> Loading:
    """Load a model as an engine does, from `weights` or else from its folder's files."""
    loading, clock, platform = Loading(), ProgressClock(), CpuPlatform()
    args = EngineArgs(model=str(folder), dtype="float32", skip_tokenizer_init=True)
    config = args.create_engine_config().model_config
    receive, replace = Linear.receive, model_loader.replace_modules

    def received(layer: Linear, name: str, tensor: Tensor) -> None:
        loading.received.append((loading.read, clock.loaded))
        receive(layer, name, tensor)

    def replaced(model: PreTrainedModel, plan: LoadPlan) -> Any:
        loading.devices |= {parameter.device.type for parameter in model.parameters()}
        return replace(model, plan)

    def filled(tensor: Tensor, *_: Any, **__: Any) -> None:
        if not getattr(tensor, "_is_hf_initialized", False):
            loading.filled.append(tensor)

    skeleton = model_loader.empty_model(
        config, transformers.AutoConfig.from_pretrained(folder), torch.float32
    )
    plan = LoadPlan(platform, Communicator(), False, verified_choices(skeleton, platform))
    with patch.context() as patches, reported_progress(clock):
        patches.setattr(Linear, "receive", received)
        patches.setattr(model_loader, "replace_modules", replaced)
        patches.setattr(initialization, "normal_", filled)
        kind = model_loader.replaced_class(type(skeleton), plan)
        given = loading.counted(stored_tensors(folder) if weights is None else weights)
        model = model_loader.read_model(config, skeleton.config, torch.float32, kind, plan, given)
    loading.received.append((loading.read, clock.loaded))
    loading.model = model
    return loading


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loading]:
    """The loading of a small model whose weights are dense."""
    folder = tmp_path_factory.mktemp("llama")
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES)).save_pretrained(folder)
    with pytest.MonkeyPatch.context() as patch:
        yield load(folder, None, patch)


def test_constructor_of_the_class_that_we_give_replaces_modules_before_weights_are_read(
    llama: Loading,
) -> None:
    assert llama.devices == {"meta"}, f"{TRANSFORMERS} constructs a model with weights"
    assert isinstance(llama.model.model.layers[1].self_attn.o_proj, Linear)


def test_each_weight_is_set_by_register_parameter(llama: Loading) -> None:
    # Seven of each layer, and the head's.
    assert len(llama.received) - 1 == 2 * 7 + 1, f"{TRANSFORMERS} sets weights otherwise"


def test_environment_variable_stops_reading_ahead(llama: Loading) -> None:
    read = [count for count, _ in llama.received[:-1]]
    assert len(set(read)) == len(read), f"{TRANSFORMERS} reads weights before others are received"


def test_hook_of_the_progress_bar_is_called_for_each_weight(llama: Loading) -> None:
    shares = [share for _, share in llama.received]
    assert shares == sorted(shares)
    assert 0.0 < shares[len(shares) // 2] < 1.0, f"{TRANSFORMERS} shows its progress otherwise"
    assert shares[-1] == 1.0


def test_parameter_that_is_marked_as_initialised_is_not_filled(llama: Loading) -> None:
    assert not llama.filled, f"{TRANSFORMERS} asks no more whether a parameter is initialised"


def test_warning_about_padding_is_the_method_that_loading_replaces() -> None:
    assert hasattr(PreTrainedModel, "warn_if_padding_and_no_attention_mask")


def test_experts_are_joined_by_operations_that_keep_their_codes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers joins experts that files have one by one, by `torch.stack` and `torch.cat`."""
    sizes = SIZES | {"num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "head_dim": 16}
    transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(**sizes)).save_pretrained(tmp_path)
    weights: dict[str, StoredTensor | StoredWeight] = {**stored_tensors(tmp_path)}
    for name, tensor in weights.items():
        if ".experts." in name:
            weights[name] = in_codes(tensor)
    joined: list[StackedFormat | None] = []
    join = quantized_tensor.join_outputs

    def joining(parts: Any) -> StackedFormat | None:
        joined.append(join(parts))
        return joined[-1]

    monkeypatch.setattr(quantized_tensor, "join_outputs", joining)
    load(tmp_path, weights, monkeypatch)
    # The gates of a layer's experts with their ups, for each of two layers.
    assert len(joined) == 2, f"{TRANSFORMERS} joins the experts of a layer otherwise"
    assert all(isinstance(one, StackedFormat) and one.shape == (3, 64, 32) for one in joined)


def in_codes(stored: Any) -> StoredWeight:
    """Return a stored weight as one in 8 bits."""
    weight = stored.read()

    def build(dtype: torch.dtype) -> QuantizedFormat:
        rounded = rounded_to_integers(DenseFormat(weight.to(dtype)), 8, 32)
        assert isinstance(rounded, GroupedFormat)
        return rounded

    return StoredWeight(weight.shape, (), Form(INT8, FLOAT, 32), build)
