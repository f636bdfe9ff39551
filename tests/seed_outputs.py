"""Outputs of seeds, recorded at one commit and compared at another: a change of the engine's structure changes no bit.

Run it by hand:

    python tests/seed_outputs.py record FILE
    python tests/seed_outputs.py compare FILE

To record at an earlier commit, copy this file to the tests of a checkout of that commit and run it there. Logits depend
on the machine, so both runs must be on the same one. `compare` prints the outputs that differ, and exits with 1 if any
does. Models are random; requests are computed alone, together, preempted and resumed, with drafts of each kind, with
adapters and with each kind of log-probabilities, by torch's sampler and by the Triton kernel in its interpreter.
"""

import itertools
import json
import logging
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported

import torch
from adapters import save_lora, save_prompt
from draft_checkpoints import save_eagle3, save_target
from engines import save_llama
from speculating_engines import draft_always
from step_counts import Counts
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from engine_server import (
    EngineArgs,
    LLMEngine,
    LoRARequest,
    PromptAdapterRequest,
    RequestOutput,
    SamplingParams,
    StructuredOutputsParams,
)
from engine_server.modeling.platform.cpu import CpuPlatform

# Numbers of tokens of the prompts, of which some take several steps.
LENGTHS = (5, 33, 12, 70)
NUM_DRAFTS = {"num_speculative_tokens": 3}
GRAMMAR = StructuredOutputsParams(regex="(ab|ba|c[0-9]{2}){12,20};")
# The parameters of requests without a grammar or several completions, with which any engine can run.
PLAIN: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "seed": {"seed": 1},
    "cold": {"seed": 2, "temperature": 0.3},
    "top_p": {"seed": 3, "top_p": 0.8},
    "top_k": {"seed": 4, "top_k": 7},
    "min_p": {"seed": 5, "min_p": 0.1},
    "filters": {"seed": 6, "top_p": 0.9, "top_k": 20, "min_p": 0.02, "temperature": 1.3},
    "repetition": {"temperature": 0, "repetition_penalty": 1.4},
    "penalties": {"seed": 7, "repetition_penalty": 1.2, "frequency_penalty": 0.4, "presence_penalty": 0.3},
    "bias": {"seed": 8, "logit_bias": {40: 3.0, 41: -5.0}},
    "bad words": {"temperature": 0, "bad_words_token_ids": [[50], [60, 61]], "allowed_token_ids": [*range(40, 90)]},
    "least": {"seed": 9, "min_tokens": 8, "stop_token_ids": [*range(30, 120)], "ignore_eos": False},
    "log-probabilities": {"seed": 10, "logprobs": 3, "prompt_logprobs": 2},
    "all": {"seed": 11, "logprobs": 2, "repetition_penalty": 1.1, "top_p": 0.9, "logit_bias": {45: 1.0}},
}  # fmt: skip
# Those that only the target with a tokenizer can run.
SPECIAL: dict[str, dict[str, Any]] = {
    "grammar": {"seed": 12, "structured_outputs": GRAMMAR, "max_tokens": 20},
    "grammar, greedy": {"temperature": 0, "structured_outputs": GRAMMAR, "logprobs": 1},
    "choices": {"seed": 13, "n": 3, "logprobs": 1},
}


# Scenarios that are computed by the kernel too, which is slow in its interpreter.
BY_KERNELS = ("together", "preempted", "n-gram drafts", "draft head", "adapters")


class Scenario(NamedTuple):
    """Requests and the engine that computes them."""

    # By arguments that differ from the usual.
    engine: dict[str, Any]
    requests: dict[str, dict[str, Any]]
    # Compute each request alone.
    alone: bool = False
    # Have an adapter for each request in turn, or none.
    adapted: bool = False
    # Compute the requests again, from the middle of their outputs.
    resumed: bool = False


def save_models(folder: Path) -> None:
    """Save a target with a tokenizer of bytes, a draft model, adapters, and a target with a draft head."""
    torch.manual_seed(0)
    save_llama(folder / "target", vocab_size=300, num_hidden_layers=2, num_key_value_heads=2)
    save_llama(folder / "drafts", vocab_size=300, num_hidden_layers=1)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate(["<s>", "</s>", *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    for name in ("target", "drafts"):
        PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>").save_pretrained(folder / name)
    model = LlamaForCausalLM.from_pretrained(folder / "target")
    save_lora(model, folder / "lora 1", 1)
    save_lora(model, folder / "lora 2", 2, target_modules="all-linear")
    save_prompt(model, folder / "prompt", 3, "PROMPT_TUNING", 4)
    save_target(folder / "headed", num_layers=4, max_position_embeddings=256)
    layers = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 3]}}
    save_eagle3(folder / "head", max_position_embeddings=256, **layers)


def scenarios(folder: Path) -> dict[str, Scenario]:
    """Return all scenarios, by name."""
    every = PLAIN | SPECIAL
    logged = {name: {"logprobs": 3} | options for name, options in every.items()}
    ngram = {"method": "ngram", "prompt_lookup_min": 1, "prompt_lookup_max": 3} | NUM_DRAFTS
    head = {"method": "eagle3", "model": str(folder / "head")} | NUM_DRAFTS
    model = {"model": str(folder / "drafts")} | NUM_DRAFTS
    adapters = {
        "enable_lora": True, "max_loras": 1, "max_cpu_loras": 2, "max_lora_rank": 8, "enable_prompt_adapter": True,
        "max_prompt_adapter_token": 8,
    }  # fmt: skip
    # A vocabulary of 96 tokens.
    small = {name: options for name, options in PLAIN.items() if name != "least"}
    return {
        "alone": Scenario({}, every, alone=True),
        "together": Scenario({}, every),
        "preempted": Scenario({"num_gpu_blocks_override": 16}, every),
        "resumed": Scenario({}, PLAIN | {"grammar": SPECIAL["grammar"]}, resumed=True),
        "processed log-probabilities": Scenario({"logprobs_mode": "processed_logprobs"}, logged),
        "raw logits": Scenario({"logprobs_mode": "raw_logits"}, logged),
        "processed logits": Scenario({"logprobs_mode": "processed_logits"}, logged),
        "n-gram drafts": Scenario({"speculative_config": ngram}, every),
        "draft model": Scenario({"speculative_config": model}, every),
        "draft head": Scenario(
            {"model": str(folder / "headed"), "skip_tokenizer_init": True, "speculative_config": head}, small
        ),
        "adapters": Scenario(adapters, every, adapted=True),
    }


class Run:
    """A scenario in an engine of its own."""

    def __init__(self, scenario: Scenario, folder: Path, **options: bool) -> None:
        self._scenario, self._folder = scenario, folder
        usual = {
            "model": str(folder / "target"), "dtype": "float32", "max_model_len": 160, "max_num_seqs": 24,
            "num_gpu_blocks_override": 300, "max_num_batched_tokens": 48,
        }  # fmt: skip
        args = EngineArgs(**usual | scenario.engine | options)
        self.counts = Counts()
        self._engine = LLMEngine.from_engine_args(args, stat_loggers={"counts": self.counts})
        if "speculative_config" in scenario.engine:
            draft_always(self._engine)  # so that drafts don't depend on measured times

    def outputs(self) -> dict[str, Any]:
        """Return the outputs of each request as plain data."""
        names = list(self._scenario.requests)
        outputs: dict[str, RequestOutput] = {}
        for group in [[name] for name in names] if self._scenario.alone else [names]:
            outputs |= self._finish({name: [] for name in group})
        if self._scenario.resumed:
            generated = {name: output.outputs[0].token_ids for name, output in outputs.items()}
            self._engine.reset_prefix_cache()
            outputs = self._finish({name: list(ids[: len(ids) // 2]) for name, ids in generated.items()})
        return {name: plain_data(output) for name, output in outputs.items()}

    def _finish(self, resumed: dict[str, list[int]]) -> dict[str, RequestOutput]:
        """Compute requests together, given what they have generated; return the last output of each."""
        for name, token_ids in resumed.items():
            self._add(name, token_ids)
        core = self._engine._core
        # Grammars and adapters are prepared in threads, and steps must not depend on their speed.
        while not all(request.ready for request in core.scheduler.requests.values()):
            core.idle()
        last = {}
        while self._engine.has_unfinished_requests():
            for output in self._engine.step():
                last[output.request_id] = output
        self._engine.check_integrity()
        return last

    def _add(self, name: str, resumed: list[int]) -> None:
        number = list(self._scenario.requests).index(name)
        length = LENGTHS[number % len(LENGTHS)]
        # Repeated every 9 tokens, so that n-grams are found.
        prompt = {"prompt_token_ids": [(place % 9 * 7 + number) % 80 + 10 for place in range(length)]}
        options = {"max_tokens": 10, "ignore_eos": True} | self._scenario.requests[name]
        lora = prompt_adapter = None
        if self._scenario.adapted:
            lora = [None, LoRARequest("a", 1, str(self._folder / "lora 1")),
                    LoRARequest("b", 2, str(self._folder / "lora 2"))][number % 3]  # fmt: skip
            if number % 4 == 3:
                prompt_adapter = PromptAdapterRequest("p", 1, str(self._folder / "prompt"), 4)
        self._engine.add_request(
            name, prompt | ({"resume_token_ids": resumed} if resumed else {}), SamplingParams(**options),
            lora_request=lora, prompt_adapter_request=prompt_adapter,
        )  # fmt: skip


def plain_data(output: RequestOutput) -> dict[str, Any]:
    """Return what must stay the same, with numbers as hexadecimal so that no bit is lost."""
    choices = [
        {"tokens": list(one.token_ids), "reason": one.finish_reason, "log-probabilities": exact(one.logprobs)}
        for one in output.outputs
    ]
    return {"choices": choices, "prompt": exact(output.prompt_logprobs)}


def exact(positions: Any) -> list[list[Any]]:
    return [
        [[token, one.logprob.hex(), one.rank] for token, one in position.items()] if position else []
        for position in positions or []
    ]


def recorded(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the outputs of each scenario by each sampler, overlapped and not, with its name."""
    save_models(folder)
    loops = {"plain": False, "overlapped": True}
    for (name, scenario), sampler, loop in itertools.product(
        scenarios(folder).items(), ("torch", "Triton"), loops
    ):
        if sampler == "Triton" and name not in BY_KERNELS:
            continue
        by_kernel = sampler == "Triton"  # which would be recorded as a CUDA graph
        with mock.patch.object(CpuPlatform, "samples_by_kernel", by_kernel):
            run = Run(scenario, folder, async_scheduling=loops[loop], enforce_eager=by_kernel)
            outputs = run.outputs()
        assert bool(run.counts.drafted) == ("speculative_config" in scenario.engine), name
        assert bool(run.counts.preemptions) == (name == "preempted"), name
        yield f"{name}, {sampler}, {loop}", outputs


def main(action: str, file: Path) -> int:
    expected = json.loads(file.read_text()) if action == "compare" else {}
    found: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, outputs in recorded(Path(folder)):
            found[name] = outputs
            differing = [one for one in outputs if outputs[one] != expected.get(name, {}).get(one)]
            remark = "" if action == "record" else f": {', '.join(differing) or 'equal'}"
            print(f"{name}{remark}", flush=True)
    if action == "record":
        file.write_text(json.dumps(found, indent=1))
        return 0
    return int(found != expected)


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    match sys.argv[1:]:
        case ["record" | "compare" as action, path]:
            sys.exit(main(action, Path(path)))
        case _:
            sys.exit(__doc__)
