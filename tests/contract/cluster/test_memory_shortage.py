"""The report of an engine that does not fit into memory."""

from engine_server.contract.cluster.memory_shortage import MemoryShortage, find_shortage


def test_a_shortage_is_found_in_other_output() -> None:
    shortage = MemoryShortage(30517, 15109, "cuda")
    output = (
        f"loading\nValueError: weights: at least {shortage}. CUDA out of memory.\nthe core ended with 1\n"
    )
    assert find_shortage(output) == shortage
    assert shortage.is_on_gpu


def test_other_output_has_no_shortage() -> None:
    assert find_shortage("memory of cuda: weights 100 MiB, largest step 5 MiB; 7 MiB are left") is None
