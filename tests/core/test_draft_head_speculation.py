"""Draft heads in the engine: their drafts are those of forwards of whole prefixes, and the output is the target's."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from adapters import save_lora, save_prompt
from draft_checkpoints import HIDDEN, save_eagle3, save_mtp, save_target
from native_kernels import needs_kernels
from safetensors.torch import save_file
from speculating_engines import contents, draft_always, make, run, set_price_of_drafts
from step_counts import Counts
from tiers import tiered
from torch import Tensor
from transformers import AutoModelForCausalLM

from engine_server import EngineArgs, LLMEngine, LoRARequest, PromptAdapterRequest, SamplingParams
from engine_server.core.scheduling.batch import Batch
from engine_server.core.scheduling.request import GenerationRequest
from engine_server.core.step_capture import Replay, StepCapture
from engine_server.modeling.attention.hook import ForwardContext
from engine_server.modeling.attention.interface import IntArray, StepInputs
from engine_server.modeling.attention.step_attention import StepAttention
from engine_server.modeling.device.communicator import Communicator
from engine_server.modeling.drafting.draft_head import DraftHead, collect_states
from engine_server.modeling.drafting.eagle3_folder import load_eagle3
from engine_server.modeling.drafting.mtp_checkpoint import load_mtp
from engine_server.modeling.loader.model_loader import load_model
from engine_server.modeling.platform.cpu import CpuPlatform

NUM_DRAFTS = 3
GREEDY = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
SAMPLED = SamplingParams(temperature=1, seed=3, top_p=0.9, max_tokens=16, ignore_eos=True)
# Of a target with four layers.
AUX_LAYERS = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 3]}}
by_params = pytest.mark.parametrize(
    "params",
    [pytest.param(GREEDY, id="greedy", marks=pytest.mark.thorough), pytest.param(SAMPLED, id="sampled")],
)
PROMPTS = [[5, 77, 31, 8, 90, 2, 64], [9, 4, 11], [*range(20, 45)]]


class Checkpoint(NamedTuple):
    """A target, and the settings of its draft head."""

    target: Path
    speculative_config: dict[str, Any]


# Returns drafts of the tokens after those given, as many as asked for, computed without a cache.
Reference = Callable[[list[int], int], list[int]]


class RecordedDrafts(NamedTuple):
    """A request's tokens, and its drafts of the next ones."""

    known: list[int]
    drafts: list[int]


class RecordedStep(NamedTuple):
    """A step of a head: its size if it has one token of each sequence, and the sizes of the captured steps replayed."""

    decodes: int | None
    replayed: list[int]
    logits: Tensor


@pytest.fixture(scope="module", params=tiered(["eagle3", "mtp"], "eagle3"))
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    target, head = tmp_path_factory.mktemp("target"), tmp_path_factory.mktemp("head")
    settings = {"method": request.param, "num_speculative_tokens": NUM_DRAFTS}
    if request.param == "mtp":
        save_mtp(target, "mimo")
        return Checkpoint(target, settings)
    save_target(target, num_layers=4)
    save_eagle3(head, **AUX_LAYERS)
    return Checkpoint(target, settings | {"model": str(head)})


@pytest.fixture(scope="module")
def plain(checkpoint: Checkpoint) -> LLMEngine:
    return make(checkpoint.target, None)


def record_drafts(engine: LLMEngine, monkeypatch: pytest.MonkeyPatch) -> list[RecordedDrafts]:
    """Return a list to which the drafts of all later steps are appended."""
    recorded: list[RecordedDrafts] = []
    speculator = engine._core.speculator
    assert speculator is not None
    draft = speculator._drafter.draft

    def recording(requests: Sequence[GenerationRequest], lengths: Sequence[int]) -> list[list[int]]:
        drafts = draft(requests, lengths)
        recorded.extend(
            RecordedDrafts([*one.token_ids], own) for one, own in zip(requests, drafts, strict=True) if own
        )
        return drafts

    monkeypatch.setattr(speculator._drafter, "draft", recording)
    return recorded


def record_steps(engine: LLMEngine, monkeypatch: pytest.MonkeyPatch) -> list[RecordedStep]:
    """Return a list to which all later steps of the head are appended."""
    recorded: list[RecordedStep] = []
    replayed: list[int] = []
    executor, replay = engine._core.executor, StepCapture.states
    compute = executor.draft_logits

    def replaying(capture: StepCapture, found: Replay) -> Tensor:
        replayed.append(found.size)
        return replay(capture, found)

    def recording(batch: Batch, sources: IntArray | None = None) -> Tensor:
        replayed.clear()
        logits = compute(batch, sources)
        plain = all(part.num_tokens == 1 and part.samples for part in batch)
        recorded.append(RecordedStep(len(batch) if plain else None, [*replayed], logits.clone()))
        return logits

    monkeypatch.setattr(StepCapture, "states", replaying)
    monkeypatch.setattr(executor, "draft_logits", recording)
    return recorded


def whole(count: int) -> StepInputs:
    """Return a step of one sequence."""
    return StepInputs.of([0], [count], [count])


@pytest.fixture(scope="module")
def reference(checkpoint: Checkpoint) -> Reference:
    return load_reference(checkpoint)


def load_reference(checkpoint: Checkpoint) -> Reference:
    args = EngineArgs(model=str(checkpoint.target), skip_tokenizer_init=True, dtype="float32")
    config, platform = args.create_engine_config(), CpuPlatform()
    model: Any = load_model(config.model_config, config.load_config, platform, Communicator())
    head: DraftHead
    if "model" in checkpoint.speculative_config:
        folder = Path(checkpoint.speculative_config["model"])
        head = load_eagle3(folder, model, config.model_config, config.load_config, platform)
    else:
        head = load_mtp(model, config.model_config, config.load_config, platform)
    context = ForwardContext(StepAttention())

    @torch.inference_mode()
    def drafts(known: list[int], count: int) -> list[int]:
        positions = torch.arange(len(known) - 1)
        with context.run(whole(len(positions))), collect_states(model, head.aux_layers) as auxiliary:
            output = model.get_decoder()(
                input_ids=torch.tensor([known[:-1]]), position_ids=positions[None], use_cache=False
            )
        hidden: Tensor = head.prepare(output.last_hidden_state[0], auxiliary)
        tokens = known[1:]
        while len(tokens) < len(known) - 1 + count:
            with context.run(whole(len(tokens))):
                states = head.states(torch.tensor(tokens), torch.arange(len(tokens)), hidden)
            hidden = torch.cat([hidden, states[-1:]])
            tokens = [*tokens, int(head.logits(states[-1:]).argmax())]
        return tokens[len(known) - 1 :]

    return drafts


def check(recorded: list[RecordedDrafts], reference: Reference) -> None:
    assert len(recorded) > 20
    for known, drafts in recorded:
        assert drafts == reference(known, len(drafts))


@pytest.mark.transformers
@pytest.mark.parametrize(
    "options", tiered([{}, {"max_num_batched_tokens": 8}, {"enforce_eager": True}], {}, ids=str)
)
def test_drafts_are_those_of_the_whole_prefix(
    checkpoint: Checkpoint,
    reference: Reference,
    plain: LLMEngine,
    options: dict[str, Any],
    finish,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = make(checkpoint.target, checkpoint.speculative_config, **options)
    recorded = record_drafts(engine, monkeypatch)
    requests = [(prompt, GREEDY) for prompt in PROMPTS]

    outputs = run(engine, finish, requests)

    assert contents(outputs) == contents(run(plain, finish, requests))
    assert any(len(one.drafts) == NUM_DRAFTS for one in recorded)
    check(recorded, reference)


@pytest.mark.more
@needs_kernels
def test_captured_steps_of_a_head_give_the_logits_of_eager_ones(
    checkpoint: Checkpoint, finish, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = [(prompt, GREEDY) for prompt in PROMPTS]
    steps = []
    for eager in (False, True):
        engine = make(checkpoint.target, checkpoint.speculative_config, enforce_eager=eager)
        with monkeypatch.context() as patch:
            recorded = record_steps(engine, patch)
            run(engine, finish, requests)
        steps.append(recorded)

    captured, eager_ones = steps
    assert not any(step.replayed for step in eager_ones)
    assert all(step.replayed == ([step.decodes] if step.decodes else []) for step in captured)
    assert {1, 2, len(PROMPTS)} <= {step.decodes for step in captured}
    for step, expected in zip(captured, eager_ones, strict=True):
        assert torch.equal(step.logits, expected.logits)


@pytest.mark.thorough
def test_drafts_for_a_target_with_windows_in_some_layers_are_those_of_the_whole_prefix(
    tmp_path: Path, finish, monkeypatch: pytest.MonkeyPatch
) -> None:
    windows = {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"] * 2}
    save_target(tmp_path / "target", 4, "Qwen3ForCausalLM", use_sliding_window=True, **windows)
    save_eagle3(tmp_path / "head", **AUX_LAYERS)
    settings = {"method": "eagle3", "model": str(tmp_path / "head"), "num_speculative_tokens": NUM_DRAFTS}
    checkpoint = Checkpoint(tmp_path / "target", settings)
    engine = make(checkpoint.target, settings)
    recorded = record_drafts(engine, monkeypatch)
    requests = [(prompt, GREEDY) for prompt in PROMPTS]

    outputs = run(engine, finish, requests)

    assert contents(outputs) == contents(run(make(checkpoint.target, None), finish, requests))
    check(recorded, load_reference(checkpoint))


@pytest.mark.more
def test_drafts_after_a_cached_prefix_are_those_of_the_whole_prefix(
    checkpoint: Checkpoint, reference: Reference, finish, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make(checkpoint.target, checkpoint.speculative_config, num_gpu_blocks_override=8)
    requests = [([*range(30, 70)], GREEDY)]
    run(engine, finish, requests)
    recorded = record_drafts(engine, monkeypatch)

    (output,) = run(engine, finish, requests)

    assert output.num_cached_tokens == 32
    assert recorded
    assert all(one.drafts == reference(one.known, len(one.drafts)) for one in recorded)


@pytest.mark.more
@by_params
def test_preempted_requests_have_the_same_output(
    checkpoint: Checkpoint, plain: LLMEngine, params: SamplingParams, finish
) -> None:
    counts = Counts()
    few = {"num_gpu_blocks_override": 8, "block_size": 8}
    engine = make(checkpoint.target, checkpoint.speculative_config, counts, **few)
    requests = [([10 * number + 3, *range(20)], params) for number in range(4)]

    outputs = run(engine, finish, requests)

    assert contents(outputs) == contents(run(plain, finish, requests))
    assert counts.preemptions and counts.drafted


@pytest.mark.thorough
def test_prompts_as_embeddings_have_the_same_output(checkpoint: Checkpoint, finish) -> None:
    rows = torch.randn(12, HIDDEN, generator=torch.Generator().manual_seed(0))
    outputs = []
    for settings in (None, checkpoint.speculative_config):
        engine = make(checkpoint.target, settings, enable_prompt_embeds=True)
        engine.add_request("r", {"prompt_embeds": rows}, GREEDY.clone())
        outputs.append(finish(engine)["r"])
    assert contents(outputs[:1]) == contents(outputs[1:])


@pytest.mark.thorough
def test_two_ranks_draft_what_one_drafts(
    checkpoint: Checkpoint, reference: Reference, finish, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make(checkpoint.target, checkpoint.speculative_config, tensor_parallel_size=2, device="cpu")
    recorded = record_drafts(engine, monkeypatch)

    run(engine, finish, [(prompt, GREEDY) for prompt in PROMPTS])

    check(recorded, reference)


@pytest.mark.thorough
def test_requests_with_adapters_have_the_same_output(checkpoint: Checkpoint, finish, tmp_path: Path) -> None:
    target = AutoModelForCausalLM.from_pretrained(checkpoint.target)
    layers = ["embed_tokens", "lm_head", "q_proj"]
    lora = LoRARequest("lora", 1, str(save_lora(target, tmp_path / "lora", 1, target_modules=layers)))
    folder = save_prompt(target, tmp_path / "virtual", 2, "PROMPT_TUNING", 3)
    virtual = PromptAdapterRequest("virtual", 1, str(folder), 3)
    adapters: dict[str, dict[str, Any]] = {
        "base": {}, "lora": {"lora_request": lora}, "virtual": {"prompt_adapter_request": virtual},
    }  # fmt: skip
    outputs = []
    for settings in (None, checkpoint.speculative_config):
        engine = make(checkpoint.target, settings, enable_lora=True, enable_prompt_adapter=True)
        for name, adapter in adapters.items():
            engine.add_request(name, {"prompt_token_ids": PROMPTS[0]}, GREEDY.clone(), **adapter)
        last = finish(engine)
        outputs.append(contents([last[name] for name in adapters]))
    assert outputs[0] == outputs[1]
    base, *adapted = outputs[0]
    assert base not in adapted


@pytest.mark.thorough
@pytest.mark.parametrize("level", [1, 2])
def test_drafts_after_a_sleep_are_those_of_the_whole_prefix(
    checkpoint: Checkpoint, reference: Reference, level: int, finish, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make(checkpoint.target, checkpoint.speculative_config)
    requests = [(prompt, GREEDY) for prompt in PROMPTS]
    before = contents(run(engine, finish, requests))
    engine.sleep(level)
    engine.wake_up()
    recorded = record_drafts(engine, monkeypatch)

    assert contents(run(engine, finish, requests)) == before
    check(recorded, reference)


def save_predictable(folder: Path) -> None:
    """Save a target whose next token depends on hardly more than the last one, and a module that computes the same."""
    tensors = save_mtp(folder, "mimo")
    for name in tensors:
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            tensors[name].mul_(1e-4)
    tensors["model.embed_tokens.weight"][0] = (
        1  # that of padding is 0, so that only the layers' output counts
    )
    start = "model.mtp_layers.0."
    tensors[f"{start}token_layernorm.weight"].fill_(1)
    tensors[f"{start}final_layernorm.weight"] = tensors["model.norm.weight"].clone()
    tensors[f"{start}input_proj.weight"] = torch.cat([torch.zeros(HIDDEN, HIDDEN), torch.eye(HIDDEN)], 1)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


@pytest.mark.more
@by_params
def test_drafts_of_a_head_that_predicts_its_target_are_accepted_whole(
    tmp_path: Path, params: SamplingParams, finish
) -> None:
    save_predictable(tmp_path)
    counts = Counts()
    engine = make(tmp_path, {"method": "mtp", "num_speculative_tokens": NUM_DRAFTS}, counts)
    requests = [(prompt, params) for prompt in PROMPTS]

    outputs = run(engine, finish, requests)

    assert contents(outputs) == contents(run(make(tmp_path, None), finish, requests))
    assert counts.accepted == counts.drafted > 0


@pytest.mark.more
@by_params
def test_drafts_after_overlapped_steps_continue_the_latest_states(
    tmp_path: Path, params: SamplingParams, finish
) -> None:
    save_predictable(tmp_path)
    counts = Counts()
    settings = {"method": "mtp", "num_speculative_tokens": NUM_DRAFTS}
    engine = make(tmp_path, settings, counts, async_scheduling=True)
    set_price_of_drafts(engine, 1.0)
    for number, prompt in enumerate(PROMPTS):
        engine.add_request(str(number), {"prompt_token_ids": prompt}, params.clone())
    for _ in range(8):
        engine.step()
        assert engine.debug_state().in_flight
    assert counts.drafted == 0

    draft_always(engine)
    last = finish(engine)

    outputs = [last[str(number)] for number in range(len(PROMPTS))]
    requests = [(prompt, params) for prompt in PROMPTS]
    assert contents(outputs) == contents(run(make(tmp_path, None), finish, requests))
    assert counts.accepted == counts.drafted > 0


def test_target_without_a_module_is_refused(tiny_llama: Path) -> None:
    with pytest.raises(ValueError, match=r"the multi-token prediction module in .* its files have none"):
        make(tiny_llama, {"method": "mtp"})


def test_head_of_another_target_is_refused(tiny_llama: Path, tmp_path: Path) -> None:
    save_eagle3(tmp_path)
    with pytest.raises(ValueError, match=r"EAGLE-3 head in .* vocab_size is 96; the target's is 128"):
        make(tiny_llama, {"method": "eagle3", "model": str(tmp_path)})


def test_missing_folder_of_a_head_is_refused(tiny_llama: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"speculative_config has model '.*/nowhere': .*no folder at"):
        make(tiny_llama, {"method": "eagle3", "model": str(tmp_path / "nowhere")})


def test_pickled_head_is_refused_with_a_remedy(tiny_llama: Path, tmp_path: Path) -> None:
    save_eagle3(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(
        ValueError, match=r"pytorch_model.bin is a pickle.*write its tensors to model.safetensors"
    ):
        make(tiny_llama, {"method": "eagle3", "model": str(tmp_path)})


@pytest.mark.more
@pytest.mark.parametrize("method", tiered(["eagle3", "draft_model"], "eagle3", more=["draft_model"]))
def test_target_that_forgets_is_refused(method: str, tmp_path: Path) -> None:
    windows = {"sliding_window": 8, "layer_types": ["sliding_attention"] * 7}
    save_target(tmp_path / "target", model="Qwen3ForCausalLM", use_sliding_window=True, **windows)
    save_eagle3(tmp_path / "eagle3")
    save_target(tmp_path / "draft_model")
    with pytest.raises(ValueError, match="every layer of the model has a window"):
        make(tmp_path / "target", {"method": method, "model": str(tmp_path / method)})
