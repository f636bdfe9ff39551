"""A hundred adapters for four slots of the asynchronous engine, all requested at once."""

import asyncio
import random
import shutil
from pathlib import Path

import pytest
import torch
from adapters import greedy, save_lora
from async_engines import drain
from safetensors.torch import load_file, save_file
from transformers import LlamaForCausalLM

from engine_server import AsyncEngineArgs, AsyncLLMEngine, LoRARequest, SamplingParams

pytestmark = pytest.mark.thorough  # the policy has tests of its own
ADAPTERS, SLOTS, IN_MEMORY, SEQUENCES = 100, 4, 8, 8
# Requests for each adapter, those for the base model, and the number of answers before adapters are removed.
REQUESTS, PLAIN, EARLY = 3, 50, 60
# A request may be overtaken while its adapter is read, by those whose adapters are in memory or were removed from it.
OVERTAKING = 2 * IN_MEMORY * REQUESTS + SEQUENCES
# Adapters whose answers are compared with PEFT's.
SAMPLE = (0, 41, 99)
WEIGHTS = "adapter_model.safetensors"
PROMPT = [3, 4, 5, 6]
GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, detokenize=False)


@pytest.fixture(scope="module")
def loras(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> list[LoRARequest]:
    folder = tmp_path_factory.mktemp("adapters")
    model = LlamaForCausalLM.from_pretrained(tiny_llama)
    first = save_lora(model, folder / "0", 0, target_modules=["q_proj", "v_proj", "down_proj"])
    tensors = load_file(first / WEIGHTS)
    for number in range(1, ADAPTERS):
        shutil.copytree(first, folder / str(number))
        torch.manual_seed(number)
        others = {name: torch.randn_like(tensor) / 4 for name, tensor in tensors.items()}
        save_file(others, folder / str(number) / WEIGHTS)
    return [LoRARequest(str(number), number + 1, str(folder / str(number))) for number in range(ADAPTERS)]


def test_every_request_of_a_flood_ends_with_the_tokens_of_its_adapter(
    tiny_llama: Path, loras: list[LoRARequest]
) -> None:
    async def run() -> None:
        engine = await asyncio.to_thread(
            AsyncLLMEngine.from_engine_args,
            AsyncEngineArgs(
                model=str(tiny_llama), dtype="float32", skip_tokenizer_init=True, num_gpu_blocks_override=64,
                max_num_seqs=SEQUENCES, enable_lora=True, max_loras=SLOTS, max_cpu_loras=IN_MEMORY,
            ),
        )  # fmt: skip
        ended: list[str] = []
        early = asyncio.Event()

        async def answer(key: str, lora: LoRARequest | None) -> list[int]:
            stream = engine.generate({"prompt_token_ids": PROMPT}, GREEDY, key, lora_request=lora)
            last = (await drain(stream))[-1]
            ended.append(key)
            if len(ended) == EARLY:
                early.set()
            return list(last.outputs[0].token_ids)

        async def remove() -> list[bool]:
            await early.wait()
            return [await engine.remove_lora(number) for number in await engine.list_loras()]

        try:
            wanted = [*loras * REQUESTS, *[None] * PLAIN]
            random.Random(0).shuffle(wanted)
            flood = [answer(str(place), lora) for place, lora in enumerate(wanted)]
            removed, *found = await asyncio.gather(remove(), *flood)
            alone = {lora: await answer("alone", lora) for lora in [None, *loras]}
            held = await engine.list_loras()
        finally:
            engine.shutdown()
        assert found == [alone[lora] for lora in wanted]
        assert any(removed) and len(held) <= IN_MEMORY
        in_turn = [int(key) for key in ended[: len(wanted)] if wanted[int(key)] is not None]
        overtaken = [sum(other > place for other in in_turn[:turn]) for turn, place in enumerate(in_turn)]
        assert max(overtaken) < OVERTAKING
        model = LlamaForCausalLM.from_pretrained(tiny_llama)
        for number in SAMPLE:
            assert alone[loras[number]] == greedy(model, Path(loras[number].lora_path), PROMPT, 6)
        assert len({str(tokens) for tokens in alone.values()}) > ADAPTERS // 2

    asyncio.run(run())
