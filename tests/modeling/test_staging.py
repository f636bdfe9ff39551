"""The inputs of a step as the device sees them."""

import numpy as np
import pytest
import torch

from engine_server.modeling.attention.interface import Staged, StepInputs
from engine_server.modeling.graphs.staging import Staging, StepShape
from engine_server.modeling.platform.cpu import CpuPlatform
from engine_server.modeling.platform.interface import Platform

BLOCK_SIZE, KINDS, ROWS, COLUMNS = 16, 2, 5, 3
# By kind and row.
TABLE = np.arange(KINDS * ROWS * COLUMNS, dtype=np.int32).reshape(KINDS, ROWS, COLUMNS)
ALIGNMENT_BYTES = 16


class OverlappingPlatform(CpuPlatform):
    """A CPU that is given copies of inputs, as a GPU is."""

    asynchronous = True


@pytest.fixture(params=[CpuPlatform, OverlappingPlatform])
def staging(request: pytest.FixtureRequest) -> Staging:
    """Return the buffers of steps of up to 9 tokens, a number that is no multiple of the alignment."""
    platform: Platform = request.param()
    return Staging(9, 5, TABLE.shape, platform)


def mixed_step() -> StepInputs:
    """Return a decode at position 20, three tokens from position 15 on, and a decode at position 0."""
    step = StepInputs.of(
        [3, 1, 4], [1, 3, 1], [21, 18, 1], KINDS, token_ids=[7, 8, 9, 10, -5], adapters=[0, -1, 1]
    )
    step.place(TABLE, BLOCK_SIZE)
    return step


def put(staging: Staging, shape: StepShape | None) -> Staged:
    """Stage `mixed_step`, of which the first and the last sequence sample, with the whole block table."""
    changes = np.stack([*np.indices(TABLE.shape).reshape(3, -1), TABLE.ravel()]).astype(np.int32)
    return staging.put(mixed_step(), np.array([0, 2]), shape, changes)


def test_step_has_its_positions_and_slots() -> None:
    step = mixed_step()

    assert step.starts.tolist() == [0, 1, 4]
    assert step.positions.tolist() == [20, 15, 16, 17, 0]
    # The blocks are 10, 3, 4, 4 and 12; those of the other kind are 15 more.
    slots = [10 * 16 + 4, 3 * 16 + 15, 4 * 16, 4 * 16 + 1, 12 * 16]
    assert step.slots.tolist() == [slots, [slot + 15 * 16 for slot in slots]]
    assert step.adapters is not None and step.adapters.tolist() == [0, -1, -1, -1, 1]


def test_staged_step_has_the_inputs_and_the_changed_table(staging: Staging) -> None:
    step, staged = mixed_step(), put(staging, None)

    assert staged.token_ids.tolist() == [7, 8, 9, 10, -5]
    assert staged.positions.tolist() == step.positions.tolist()
    assert staged.slots.tolist() == step.slots.tolist()
    assert staged.adapters.tolist() == [0, -1, -1, -1, 1]
    assert staged.prefills.tolist() == [[1, 1, 3, 18]]
    assert staged.decodes.tolist() == [[3, 0, 1, 21], [4, 4, 1, 1]]
    assert staged.logit_rows.tolist() == [0, 4]
    assert staged.sampling.tolist() == [3, 4]
    assert np.array_equal(staged.tables[:, :-1].numpy(), TABLE)
    assert np.array_equal(staging.tables[:, :-1], TABLE)


def test_step_is_padded_with_tokens_that_write_nothing(staging: Staging) -> None:
    padded = put(staging, StepShape(8, 3, 4))

    assert padded.token_ids.tolist() == [7, 8, 9, 10, -5, 0, 0, 0]
    assert padded.slots[:, 5:].unique().tolist() == padded.adapters[5:].unique().tolist() == [-1]
    # The first padding sequence has the tokens that pad the step, the others have none.
    assert padded.prefills.tolist() == [[1, 1, 3, 18], [ROWS, 5, 3, 0], [ROWS, 8, 0, 0]]
    assert padded.decodes.tolist() == [[3, 0, 1, 21], [4, 4, 1, 1], [ROWS, 8, 0, 0], [ROWS, 8, 0, 0]]
    assert staging.views(StepShape(8, 3, 4), 5).sampling.tolist() == [3, 4, ROWS, ROWS, ROWS]


def test_every_step_of_a_shape_has_the_same_aligned_addresses(staging: Staging) -> None:
    first, second = put(staging, None), put(staging, None)

    parts = [*first._replace(slots=first.slots[0]), first.slots[1]]
    assert [part.data_ptr() for part in first] == [part.data_ptr() for part in second]
    assert all(part.data_ptr() % ALIGNMENT_BYTES == 0 and part.dtype == torch.int32 for part in parts)
