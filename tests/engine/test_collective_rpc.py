"""collective_rpc: methods of the executor, called by name on every rank."""

from pathlib import Path

import pytest

from engine_server import LLM


@pytest.fixture(scope="module")
def llm(tiny_llama: Path) -> LLM:
    return LLM(str(tiny_llama), dtype="float32", skip_tokenizer_init=True, num_gpu_blocks_override=16)


def test_method_is_called_on_every_rank_with_its_arguments(llm: LLM) -> None:
    assert llm.collective_rpc("erase", args=([0],)) == [None]
    assert llm.collective_rpc("erase", kwargs={"block_ids": [1]}) == [None]


def test_unknown_methods_and_functions_are_refused(llm: LLM) -> None:
    with pytest.raises(RuntimeError, match="no_such_method"):
        llm.collective_rpc("no_such_method")
    with pytest.raises(TypeError, match="takes the name of a method"):
        llm.collective_rpc(lambda worker: worker)
    with pytest.raises(ValueError, match="timeout"):
        llm.collective_rpc("erase", timeout=1.0)
    assert llm.generate([[5]], use_tqdm=False)[0].finished
