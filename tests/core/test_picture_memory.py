"""The memory in which pictures are encoded is reserved: that of the largest one, where the device measures it."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from allocations import AllocationMeter
from encoder_memory import internvl_of_tiles, reserved, taken
from metered_device import GIB, MeteredDevice
from tiers import tiered
from tiny_pictures import FAMILIES, TILE, Family, tiny_models
from torch import Tensor

from engine_server import EngineArgs, LLMEngine
from engine_server.core import loaded_model, model_runner
from engine_server.core.loaded_model import LoadedModel
from engine_server.modeling.cache.ledger import MemoryLedger
from engine_server.modeling.device.communicator import Communicator
from engine_server.modeling.pictures.processor import PictureProcessor
from engine_server.modeling.platform.cpu import CpuPlatform

pytestmark = pytest.mark.transformers

# InternVL makes as many of a strip, and four of a square.
MOST_TILES = 7
CONTEXT = 512


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Family], Path]:
    """Return the folder of a family's tiny model."""
    return tiny_models(tmp_path_factory)


def load(folder: Path, device: CpuPlatform, **options: Any) -> LoadedModel:
    args = EngineArgs(model=str(folder), dtype="float32", skip_tokenizer_init=True, **options)
    return LoadedModel(args.create_engine_config(), device, MemoryLedger(device), Communicator())


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> MeteredDevice:
    """Return a device that measures what an encoder takes."""
    device, encode = MeteredDevice(), LoadedModel.picture_rows

    def measured(self: LoadedModel, inputs: Mapping[str, Tensor]) -> Tensor:
        with AllocationMeter() as meter:
            rows = encode(self, inputs)
        device.take(0, meter.peak)
        return rows

    monkeypatch.setattr(LoadedModel, "picture_rows", measured)
    return device


@pytest.mark.parametrize("family", tiered(FAMILIES, "internvl", more=FAMILIES))
def test_no_picture_takes_more_than_is_reserved(
    folder_of: Callable[[Family], Path], tmp_path: Path, device: MeteredDevice, family: Family
) -> None:
    folder = internvl_of_tiles(MOST_TILES, tmp_path) if family == "internvl" else folder_of(family)
    loaded = load(folder, device)

    found = reserved(loaded)

    sizes = [*taken(loaded, folder)]
    assert 0 < sizes[0] <= max(sizes) <= found
    # Of a strip of seven tiles, or a square; none of these is as long as the strip that these take the most for.
    assert max(sizes) == found or family in ("exaone4_5", "hyperclovax_vision_v2")


def test_smaller_size_of_pictures_reserves_less(
    folder_of: Callable[[Family], Path], device: MeteredDevice
) -> None:
    folder, options = folder_of("smolvlm"), {"size": {"longest_edge": TILE}}
    assert (
        0 < reserved(load(folder, device, mm_processor_kwargs=options)) < reserved(load(folder, device)) / 2
    )


def test_settings_with_which_no_picture_is_processed_reserve_nothing(
    folder_of: Callable[[Family], Path], device: MeteredDevice
) -> None:
    loaded = load(folder_of("smolvlm"), device, mm_processor_kwargs={"size": {"longest_edge": "wide"}})
    loaded.reserve_pictures()
    assert "largest_picture" not in loaded._memory.sizes


def test_start_goes_on_where_the_encoder_cannot_take_the_largest_picture(
    folder_of: Callable[[Family], Path], device: MeteredDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = load(folder_of("smolvlm"), device)

    def overflow(*_: object) -> Tensor:
        device.take(0, 3 * GIB)
        raise ValueError("the model's encoder makes numbers of the picture that are not finite")

    monkeypatch.setattr(loaded_model, "picture_rows", overflow)
    assert reserved(loaded) == 3 * GIB


def test_largest_picture_that_does_not_fit_is_named_with_the_settings_to_change(
    folder_of: Callable[[Family], Path], device: MeteredDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = load(folder_of("smolvlm"), device)

    def run_out(*_: object) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr(loaded_model, "picture_rows", run_out)
    with pytest.raises(
        ValueError, match=r"^largest picture: .*Lower the size in mm_processor_kwargs, or set"
    ):
        loaded.reserve_pictures()


def test_cpu_processes_no_picture_at_its_start(
    folder_of: Callable[[Family], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded, processed = load(folder_of("smolvlm"), CpuPlatform()), []
    monkeypatch.setattr(PictureProcessor, "process", lambda *given: processed.append(given))
    loaded.reserve_pictures()
    assert [*loaded._memory.sizes][-1] == "rows_of_pictures" and not processed


@pytest.mark.parametrize("picture", [2 * GIB, 9 * GIB])
def test_cache_leaves_the_larger_of_the_largest_step_and_the_largest_picture(
    folder_of: Callable[[Family], Path], monkeypatch: pytest.MonkeyPatch, picture: int
) -> None:
    device, encode = MeteredDevice(), loaded_model.picture_rows

    def encode_and_take(*given: Any) -> Tensor:
        device.take(0, picture)
        return encode(*given)

    monkeypatch.setattr(model_runner, "choose_platform", lambda *_: device)
    monkeypatch.setattr(loaded_model, "picture_rows", encode_and_take)
    monkeypatch.setattr(LoadedModel, "run_step", lambda *_: device.take(0, 6 * GIB))
    engine = LLMEngine.from_engine_args(
        EngineArgs(
            model=str(folder_of("smolvlm")), dtype="float32", skip_tokenizer_init=True, max_model_len=CONTEXT
        )
    )
    rows = CONTEXT * engine._core.executor.first.embedding_size * 4
    assert device.reserved == [max(6 * GIB, picture) + rows]
