"""The intervals at which pods that download are asked."""

from llm_operator.control.fetch_poller import interval_after


def test_pods_that_do_not_answer_are_asked_at_growing_intervals() -> None:
    assert [interval_after(silences, 2.0) for silences in (0, 1, 2, 10, 1000)] == [2, 4, 8, 30, 30]
