"""Outputs of requests."""

import logging

import pytest

from engine_server import FlatLogprobs, Logprob, RequestOutput

POSITIONS = [{5: Logprob(-0.5, 1, "a"), 7: Logprob(-1.5, 2, "b")}, {}, {9: Logprob(-2.0, 3, None)}]


def test_flat_logprobs_read_like_a_list_of_dicts() -> None:
    flat = FlatLogprobs(POSITIONS)
    assert list(flat) == POSITIONS and len(flat) == 3
    assert flat[0] == POSITIONS[0] and flat[-1] == POSITIONS[-1]
    assert list(flat[1:]) == POSITIONS[1:]
    assert list(flat + POSITIONS[:1]) == [*POSITIONS, POSITIONS[0]]
    assert flat == FlatLogprobs(POSITIONS) and flat != FlatLogprobs(POSITIONS[1:])
    with pytest.raises(IndexError):
        _ = flat[3]


def test_flat_logprobs_hold_one_entry_per_token() -> None:
    flat = FlatLogprobs(POSITIONS)
    assert (flat.token_ids, flat.ranks) == ([5, 7, 9], [1, 2, 3])
    assert flat.logprobs == [-0.5, -1.5, -2.0] and flat.decoded_tokens == ["a", "b", None]
    assert (flat.start_indices, flat.end_indices) == ([0, 2, 2], [2, 2, 3])


def test_position_of_none_is_empty_in_flat_logprobs() -> None:
    assert FlatLogprobs([None, POSITIONS[0]])[0] == {}


def test_request_output_ignores_unknown_arguments_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        output = RequestOutput(
            request_id="r", prompt="p", prompt_token_ids=[1], prompt_logprobs=None, outputs=[], finished=False,
            argument_of_a_later_version=5,
        )  # fmt: skip
    assert output.request_id == "r" and output.outputs == []
    assert "argument_of_a_later_version" in caplog.text
