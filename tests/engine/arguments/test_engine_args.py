"""EngineArgs: flags, vLLM's parameters, and defaults."""

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from engine_server import AsyncEngineArgs, EngineArgs, UsageContext


def parse(*flags: str) -> EngineArgs:
    parser = EngineArgs.add_cli_args(argparse.ArgumentParser(exit_on_error=False))
    return EngineArgs.from_cli_args(parser.parse_args(flags))


def copy_model(model: Path, folder: Path, **settings: object) -> Path:
    """Copy a model's folder and change settings in its config.json."""
    shutil.copytree(model, folder, dirs_exist_ok=True)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | settings))
    return folder


def test_model_may_be_left_out_of_the_flags_but_not_of_the_config() -> None:
    args = parse()
    assert args == EngineArgs()
    with pytest.raises(ValueError, match="model is not given"):
        args.create_engine_config()


def test_flags_with_underscores_are_those_with_dashes() -> None:
    dashes = parse("m", "--max-model-len", "64", "--no-enable-prefix-caching", "--block-size=8")
    underscores = parse("m", "--max_model_len", "64", "--no_enable_prefix_caching", "--block_size=8")
    assert dashes == underscores
    assert (dashes.max_model_len, dashes.enable_prefix_caching, dashes.block_size) == (64, False, 8)


def test_underscored_flags_are_not_listed_in_the_help() -> None:
    text = AsyncEngineArgs.add_cli_args(argparse.ArgumentParser()).format_help()
    assert "--max-model-len" in text and "--max_model_len" not in text
    assert "--swap-space" not in text


def test_prefix_caching_flags_turn_it_on_and_off() -> None:
    assert parse().enable_prefix_caching
    assert parse("--enable-prefix-caching", "--prefix-caching-hash-algo", "sha256").enable_prefix_caching
    assert not parse("--no-enable-prefix-caching").enable_prefix_caching


def test_json_and_automatic_values_are_read_from_flags() -> None:
    args = parse(
        "m", "--hf-overrides", '{"a": {"b": 1}}', "--max-model-len", "auto", "--logprobs-mode", "raw_logits"
    )
    assert (args.hf_overrides, args.max_model_len, args.logprobs_mode) == ({"a": {"b": 1}}, -1, "raw_logits")
    with pytest.raises(argparse.ArgumentError, match="no JSON object"):
        parse("m", "--hf-overrides", "[1]")


@pytest.mark.parametrize(
    "options",
    [
        {"tokenizer_mode": "slow"}, {"convert": "embed"}, {"compilation_config": "x"}, {"attention_config": {}},
        {"distributed_executor_backend": "ray"}, {"quantization": "awq"}, {"swap_space": 2},
        {"prefix_caching_hash_algo": "md5"}, {"runner": "draft"}, {"logprobs_mode": "logits"},
        {"max_logprobs": -2}, {"max_num_partial_prefills": -1}, {"long_prefill_token_threshold": -1},
        {"max_step_ms": -1},
        {"hf_overrides": "x"}, {"seed": 2**70}, {"max_model_len": 0}, {"max_model_len": -2},
    ],
    ids=str,
)  # fmt: skip
def test_argument_without_effect_or_with_a_wrong_value_is_refused_by_name(
    tiny_llama: Path, options: dict[str, object]
) -> None:
    (name,) = options
    with pytest.raises(ValueError, match=name):
        EngineArgs(model=str(tiny_llama), **options).create_engine_config()


def test_parameters_that_change_vllms_speed_alone_are_accepted_with_one_warning(
    tiny_llama: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = {
        "compilation_config": {"level": 3},
        "distributed_executor_backend": "uni",
        "prefix_caching_hash_algo": "xxhash",
    }
    config = EngineArgs(model=str(tiny_llama), **options).create_engine_config()
    [warning] = [one.getMessage() for one in caplog.records if "without effect" in one.getMessage()]
    assert warning.startswith(", ".join(options))
    assert config == EngineArgs(model=str(tiny_llama)).create_engine_config()
    assert len([one for one in caplog.records if "without effect" in one.getMessage()]) == 1


def test_parameters_without_effect_are_the_same_from_flags() -> None:
    assert parse("m", "--compilation-config", "3").compilation_config == 3
    assert parse("m", "--compilation-config", '{"level": 3}').compilation_config == {"level": 3}
    args = parse("m", "--distributed-executor-backend", "uni", "--prefix-caching-hash-algo", "builtin")
    assert (args.distributed_executor_backend, args.prefix_caching_hash_algo) == ("uni", "builtin")


def test_single_process_takes_no_parallel_ranks(tiny_llama: Path) -> None:
    args = EngineArgs(
        model=str(tiny_llama), distributed_executor_backend="uni", tensor_parallel_size=2, device="cpu"
    )
    with pytest.raises(ValueError, match="distributed_executor_backend is 'uni', a single process"):
        args.create_engine_config()


def test_default_values_of_vllm_are_accepted(tiny_llama: Path) -> None:
    config = EngineArgs(
        model=str(tiny_llama), tokenizer_mode="auto", runner="auto", convert="auto", compilation_config=None,
        attention_config=None, distributed_executor_backend="mp", quantization=None, swap_space=4, seed=None,
        max_num_seqs=None, block_size=None, revision=None, max_num_partial_prefills=3,
        long_prefill_token_threshold=32, max_logprobs=7, logprobs_mode="processed_logits",
    ).create_engine_config(UsageContext.API_SERVER)  # fmt: skip
    assert config.model_config.seed == 0 and config.cache_config.block_size == 16
    scheduler = config.scheduler_config
    assert (scheduler.max_num_seqs, scheduler.max_num_partial_prefills) == (256, 3)
    assert scheduler.long_prefill_token_threshold == 32
    assert (config.model_config.max_logprobs, config.model_config.logprobs_mode) == (7, "processed_logits")


def test_hf_overrides_replace_settings_of_the_config(tiny_llama: Path) -> None:
    args = EngineArgs(model=str(tiny_llama), hf_overrides={"max_position_embeddings": 32})
    model = args.create_engine_config().model_config
    assert model.max_model_len == 32 and model.hf_overrides == {"max_position_embeddings": 32}
    with pytest.raises(ValueError, match="hf_overrides has colour"):
        EngineArgs(model=str(tiny_llama), hf_overrides={"colour": 1}).create_engine_config()


def test_revision_is_refused_for_a_model_that_is_not_on_the_hub(tiny_llama: Path) -> None:
    with pytest.raises(ValueError, match="revision is 'main'"):
        EngineArgs(model=str(tiny_llama), revision="main").create_engine_config()
    with pytest.raises(ValueError, match="names another"):
        EngineArgs(model="hf://org/name@v1", revision="v2").create_engine_config()


CONFIGURATION = """
from transformers import LlamaConfig
class OwnConfig(LlamaConfig):
    model_type = "own-llama"
"""


def test_code_of_a_model_runs_only_with_trust_remote_code(tiny_llama: Path, tmp_path: Path) -> None:
    folder = copy_model(
        tiny_llama, tmp_path / "own", model_type="own-llama", auto_map={"AutoConfig": "configuration.OwnConfig"}
    )  # fmt: skip
    (folder / "configuration.py").write_text(CONFIGURATION)
    with pytest.raises(ValueError, match="trust_remote_code"):
        EngineArgs(model=str(folder)).create_engine_config()
    config = EngineArgs(model=str(folder), trust_remote_code=True).create_engine_config()
    assert config.model_config.vocab_size == 128 and config.model_config.trust_remote_code


def test_code_outside_the_models_folder_is_never_run(tiny_llama: Path, tmp_path: Path) -> None:
    folder = copy_model(
        tiny_llama, tmp_path / "far", model_type="own", auto_map={"AutoConfig": "org/name--configuration.Own"}
    )  # fmt: skip
    with pytest.raises(ValueError, match="another repository"):
        EngineArgs(model=str(folder), trust_remote_code=True).create_engine_config()
    with pytest.raises(ValueError, match="not a local folder"):
        EngineArgs(model="org/name", trust_remote_code=True).create_engine_config()


def test_steps_have_a_limit_of_time_on_a_cpu_unless_tokens_are_given(tiny_llama: Path) -> None:
    def limits(**options: Any) -> tuple[int, float]:
        scheduler = EngineArgs(model=str(tiny_llama), **options).create_engine_config().scheduler_config
        return scheduler.max_num_batched_tokens, scheduler.max_step_ms

    assert limits(device="cpu") == (2048, 150)
    assert limits(device="cpu", max_num_batched_tokens=96) == (96, 0)
    assert limits(device="cpu", max_num_batched_tokens=96, max_step_ms=40.5) == (96, 40.5)
    assert limits(device="cpu", max_step_ms=0) == (2048, 0)
    assert limits(device="cpu", enable_chunked_prefill=False) == (2048, 0)
    assert limits(device="cuda") == (8192, 0)
    assert limits(device="cuda", max_step_ms=40) == (8192, 40)


def test_limit_of_time_needs_chunked_prefill(tiny_llama: Path) -> None:
    args = EngineArgs(model=str(tiny_llama), enable_chunked_prefill=False, max_step_ms=50)
    with pytest.raises(ValueError, match="max_step_ms is 50: without chunked prefill"):
        args.create_engine_config()


SETTINGS = {"temperature": 0.25, "top_p": 0.5, "max_new_tokens": 3, "eos_token_id": [1, 7], "do_sample": True}


def test_sampling_defaults_come_from_the_generation_config(tiny_llama: Path, tmp_path: Path) -> None:
    folder = copy_model(tiny_llama, tmp_path / "model")
    (folder / "generation_config.json").write_text(json.dumps(SETTINGS))
    other = tmp_path / "other"
    other.mkdir()
    (other / "generation_config.json").write_text('{"top_k": 9}')

    def defaults(source: str, **override: float) -> dict:
        args = EngineArgs(model=str(folder), generation_config=source, override_generation_config=override)
        model = args.create_engine_config().model_config
        assert model.eos_token_ids == [1, 7]
        return model.get_diff_sampling_param()

    assert defaults("auto") == {"temperature": 0.25, "top_p": 0.5, "max_tokens": 3}
    assert defaults("vllm") == {}
    assert defaults(str(other)) == {"top_k": 9}
    assert defaults("auto", temperature=1.5, max_new_tokens=9) == {
        "temperature": 1.5,
        "top_p": 0.5,
        "max_tokens": 9,
    }
    assert defaults("vllm", top_k=3) == {"top_k": 3}
    with pytest.raises(ValueError, match="override_generation_config has top_n; it takes temperature"):
        defaults("auto", top_n=3)
    with pytest.raises(ValueError, match="override_generation_config has wrong sampling parameters: top_p"):
        defaults("auto", top_p=3)
    with pytest.raises(ValueError, match="generation_config is '/nowhere'"):
        defaults("/nowhere")
    (other / "generation_config.json").write_text('{"top_k": "many"}')
    with pytest.raises(ValueError, match="wrong sampling parameters: top_k"):
        defaults(str(other))


def test_revision_selects_the_commit_of_a_model_on_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """Offline, the error names what would have been fetched."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ValueError, match="hf://org/name@v1"):
        EngineArgs(model="org/name", revision="v1").create_engine_config()
