"""The benchmark of the host's work: its scripted runner is what the engine core needs of a runner."""

from benchmarks.host import PARTS, HostSteps


def test_each_part_of_a_decode_step_is_measured() -> None:
    figures = HostSteps(2).measure(3)
    assert set(figures) == set(PARTS)
    assert all(seconds > 0 for seconds in figures.values()), figures
