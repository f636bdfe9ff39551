"""What the core holds of a step after it was collected, and of a request after it has ended.

An owner that still holds something fails the test, which names it.
"""

import gc
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from adapters import save_lora, save_prompt
from draft_checkpoints import save_eagle3, save_target
from leftovers import Recorder
from speculating_engines import NGRAM, draft_always
from tiers import tiered
from transformers import LlamaForCausalLM, Qwen3Config, Qwen3ForSequenceClassification

from engine_server import (
    EngineArgs,
    LLMEngine,
    LoRARequest,
    PoolingParams,
    PromptAdapterRequest,
    SamplingParams,
    StructuredOutputsParams,
)
from engine_server.core import engine_core
from engine_server.core.engine_core import EngineCore
from engine_server.core.scheduling.request import Request

REPEATED = [7, 8, 9] * 5
# Five chunks of a step's budget, beside a decode.
LONG = [index % 50 + 30 for index in range(100)]
GRAMMAR = StructuredOutputsParams(regex="(ab|ba|c[0-9]{2}){20,40};")
# The parameters of a case's requests, by the engine that runs it.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "decodes": ("plain", {}),
    "penalties": ("plain", {"repetition_penalty": 1.2, "frequency_penalty": 0.3}),
    "bias and bans": ("plain", {"logit_bias": {40: 2.0}, "bad_words": [" the"], "min_tokens": 2}),
    "grammar": ("plain", {"structured_outputs": GRAMMAR}),
    "log-probabilities": ("plain", {"logprobs": 2, "prompt_logprobs": 1}),
    "preemption": ("plain", {}),
    "out of memory": ("plain", {}),
    "adapter": ("plain", {}),
    "prompt adapter": ("plain", {}),
    "n-gram drafts": ("ngram", {}),
    "draft model": ("draft model", {}),
    "draft head": ("draft head", {}),
    "pooling": ("pooling", {}),
}
# The engines whose steps can overlap.
KINDS = ["plain", "ngram", "draft model", "draft head"]
# The case, when, what is held, and its owner.
Held = tuple[str, str, str, str]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, tiny_writer: Path, tiny_llama: Path) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    writer = LlamaForCausalLM.from_pretrained(tiny_writer)
    save_lora(writer, folder / "lora", 1)
    save_prompt(writer, folder / "prompt", 2, "PROMPT_TUNING", 3)
    save_target(folder / "target", num_layers=4, max_position_embeddings=256)
    layers = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 3]}}
    save_eagle3(folder / "head", max_position_embeddings=256, **layers)
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=96, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, max_position_embeddings=256, pad_token_id=1,
    )  # fmt: skip
    Qwen3ForSequenceClassification(config).save_pretrained(folder / "pooling")
    return {one: folder / one for one in ("lora", "prompt", "target", "head", "pooling")} | {
        "writer": tiny_writer, "llama": tiny_llama,
    }  # fmt: skip


def make(kind: str, models: dict[str, Path], overlapped: bool) -> LLMEngine:
    own: dict[str, Any] = {
        "plain": {
            "model": models["writer"], "enable_lora": True, "max_loras": 2, "max_lora_rank": 8,
            "enable_prompt_adapter": True, "max_prompt_adapter_token": 8, "skip_tokenizer_init": False,
        },
        "ngram": {"model": models["llama"], "speculative_config": NGRAM},
        "draft model": {
            "model": models["llama"],
            "speculative_config": {"model": str(models["llama"]), "num_speculative_tokens": 3},
        },
        "draft head": {
            "model": models["target"],
            "speculative_config": {
                "method": "eagle3", "model": str(models["head"]), "num_speculative_tokens": 3,
            },
        },
        "pooling": {"model": models["pooling"]},
    }[kind]  # fmt: skip
    common = {
        "dtype": "float32", "skip_tokenizer_init": True, "max_model_len": 176, "max_num_seqs": 4,
        "num_gpu_blocks_override": 11, "max_num_batched_tokens": 24, "enforce_eager": True,
        "async_scheduling": overlapped, "disable_log_stats": True, "max_logprobs": 5,
    }  # fmt: skip
    engine = LLMEngine.from_engine_args(EngineArgs(**common | own | {"model": str(own["model"])}))
    if engine._core.speculator is not None:
        draft_always(engine)
    return engine


class Scene:
    """A case's requests in an engine, whose core is stepped directly: the front end may keep what it is given."""

    def __init__(self, case: str, engine: LLMEngine, models: dict[str, Path], recorder: Recorder) -> None:
        self._case, self._engine, self._models, self._recorder = case, engine, models, recorder
        self._core: EngineCore = engine._core
        # The names by which the core knows the requests.
        self._ids: dict[str, str] = {}
        # All that was found.
        self.held: set[Held] = set()

    def play(self) -> set[Held]:
        self._abort_beside_another()
        self._finish_beside_a_long_prompt()
        self._finish_alone()
        return self.held

    def _abort_beside_another(self) -> None:
        match self._case:
            case "preemption":
                self._add("other", LONG[:78])
                self._add("aborted", LONG[1:78])
                request = self._request("aborted")
                while request.scheduled is None or request.row is not None:
                    self._turn()
                del request
                self._turn()
            case "pooling":
                self._add("aborted", LONG)
                self._add("other", LONG)
                self._turn(2)
            case case:
                self._add("aborted", REPEATED)
                self._add("other", REPEATED[1:])
                self._turn(3)
                self._recorder.fail_next = case == "out of memory"
                self._turn(3)
        self._abort("aborted")
        self._turn()
        self._look("aborted")
        self._abort("other")
        self._drain()

    def _finish_beside_a_long_prompt(self) -> None:
        """End a request with its last token, or vector, before a step in which no row samples."""
        self._add("finished", REPEATED, max_tokens=2)
        self._add("long", LONG)
        while self._runs("finished"):
            self._turn()
        self._turn()
        assert self._request("long").computed < len(LONG)
        self._look("finished")
        self._abort("long")
        self._drain()

    def _finish_alone(self) -> None:
        """End a request with its last token, after which there is no other step."""
        self._add("last", REPEATED, max_tokens=4)
        while self._runs("last"):
            self._turn()
        self._drain()
        self._look("last")

    def _request(self, name: str) -> Request:
        return self._core.scheduler.requests[self._ids[name]]

    def _runs(self, name: str) -> bool:
        return self._ids[name] in self._core.scheduler.requests

    def _abort(self, name: str) -> None:
        self._core.scheduler.abort([self._ids[name]])

    def _add(self, name: str, prompt: list[int], max_tokens: int = 60) -> None:
        kind, options = CASES[self._case]
        params: SamplingParams | PoolingParams = PoolingParams()
        if kind != "pooling":
            params = SamplingParams(seed=1, ignore_eos=True, max_tokens=max_tokens, **options)
        lora = prompt_adapter = None
        if self._case == "adapter":
            lora = LoRARequest("lora", 1, str(self._models["lora"]))
        if self._case == "prompt adapter":
            prompt_adapter = PromptAdapterRequest("prompt", 1, str(self._models["prompt"]), 3)
        self._engine.add_request(
            name, {"prompt_token_ids": prompt}, params, lora_request=lora,
            prompt_adapter_request=prompt_adapter,
        )  # fmt: skip
        self._ids[name] = list(self._core.scheduler.requests)[-1]
        while not self._request(name).ready:  # read, or compiled, in another thread
            self._core.idle()

    def _turn(self, count: int = 1) -> None:
        """Let the core launch a step, and look for those that were collected before."""
        for _ in range(count):
            done = self._recorder.done()
            for request in self._core.scheduler.requests.values():
                self._recorder.add(request)
            del request
            self._step()
            self._hold("running", self._recorder.left_of_steps(done, self._core))

    def _drain(self) -> None:
        """Let the core run until it is idle, and once more."""
        while self._core.has_work:
            self._step()
        self._step()
        self._hold("idle", self._recorder.left_of_steps(self._recorder.done(), self._core))
        self._engine.abort_request(list(self._ids))
        assert self._core.scheduler.reset_prefix_cache()

    def _step(self) -> None:
        self._core.outputs()
        list(self._core.prompt_logprobs())

    def _look(self, name: str) -> None:
        """Look for what is held of a request that has ended."""
        self._hold(name, self._recorder.left_of_request(self._ids[name], self._core))

    def _hold(self, when: str, found: set[tuple[str, str]]) -> None:
        self.held |= {(self._case, when, *one) for one in found}


@pytest.fixture(scope="module")
def recorder() -> Iterator[Recorder]:
    with pytest.MonkeyPatch.context() as patch:
        # pytest keeps log records, and with an error the frames that it went through.
        patch.setattr(engine_core.logger, "disabled", True)
        yield Recorder(patch)


@pytest.fixture(autouse=True)
def manual_collection() -> Iterator[None]:
    """Let no automatic collection decide whether a reference cycle is seen."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize(
    ("kind", "loop"),
    tiered(
        [*product(KINDS, ["plain", "overlapped"]), ("pooling", "plain")],
        *[(kind, "overlapped") for kind in KINDS],
        ("plain", "plain"),
        ("pooling", "plain"),  # its steps never overlap
        more=[(kind, "plain") for kind in KINDS],
    ),
)
def test_core_holds_nothing_of_a_collected_step_or_an_ended_request(
    kind: str, loop: str, models: dict[str, Path], recorder: Recorder
) -> None:
    engine = make(kind, models, loop == "overlapped")
    cases = [case for case, (engine_kind, _) in CASES.items() if engine_kind == kind]

    held = set().union(*(Scene(case, engine, models, recorder).play() for case in cases))

    engine.check_integrity()
    assert sorted(held) == []
