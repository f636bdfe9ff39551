"""The settings of speculative decoding, from a flag and from Python."""

import argparse
from pathlib import Path
from typing import Any

import pytest

from engine_server import EngineArgs
from engine_server.config import SpeculativeConfig


def resolve(model: Path, settings: Any, **options: Any) -> SpeculativeConfig | None:
    args = EngineArgs(model=str(model), speculative_config=settings, **options)
    return args.create_engine_config().speculative_config


def test_there_is_no_speculation_by_default(tiny_llama: Path) -> None:
    assert resolve(tiny_llama, None) is None


def test_flag_takes_a_json_object(tiny_llama: Path) -> None:
    parser = EngineArgs.add_cli_args(argparse.ArgumentParser(exit_on_error=False))
    settings = (
        '{"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 2, "prompt_lookup_max": 4}'
    )

    args = EngineArgs.from_cli_args(parser.parse_args([str(tiny_llama), "--speculative-config", settings]))

    assert args.create_engine_config().speculative_config == SpeculativeConfig(
        method="ngram", num_speculative_tokens=3, prompt_lookup_min=2, prompt_lookup_max=4
    )
    with pytest.raises(argparse.ArgumentError, match="no JSON object"):
        parser.parse_args(["m", "--speculative-config", "ngram"])


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"method": "ngram"}, SpeculativeConfig(method="ngram")),
        ({"model": "ngram"}, SpeculativeConfig(method="ngram")),
        ({"method": "ngram", "model": "ngram"}, SpeculativeConfig(method="ngram")),
        ({"method": "ngram", "model": None}, SpeculativeConfig(method="ngram")),
        ({"model": "org/small"}, SpeculativeConfig(method="draft_model", model="org/small")),
        ({"method": "eagle3", "model": "org/head"}, SpeculativeConfig(method="eagle3", model="org/head")),
        ({"method": "mtp"}, SpeculativeConfig(method="mtp")),
        (
            {"method": "draft_model", "model": "ngram"},
            SpeculativeConfig(method="draft_model", model="ngram"),
        ),
        (
            {"method": "ngram", "prompt_lookup_max": 7},
            SpeculativeConfig(method="ngram", prompt_lookup_min=7, prompt_lookup_max=7),
        ),
        (
            {"method": "ngram", "prompt_lookup_min": 2},
            SpeculativeConfig(method="ngram", prompt_lookup_min=2, prompt_lookup_max=2),
        ),
    ],
    ids=str,
)
def test_settings_that_are_not_given_are_inferred(
    settings: dict[str, Any], expected: SpeculativeConfig
) -> None:
    assert SpeculativeConfig.of(settings) == expected


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ("ngram", "speculative_config is 'ngram'"),
        ({}, "neither method nor model is given"),
        ({"method": "guess"}, "method is 'guess'; allowed: ngram, draft_model, eagle3, mtp"),
        ({"method": ["ngram"]}, r"method is \['ngram'\]; allowed: ngram, draft_model"),
        ({"method": "eagle3"}, "method eagle3 needs model, the path or URI of the EAGLE-3 head"),
        ({"method": "mtp", "model": "org/head"}, "model is 'org/head'; method mtp takes none"),
        ({"method": "ngram", "head_path": "/head"}, "unknown head_path; allowed: method, model"),
        ({"method": "draft_model"}, "method draft_model needs model"),
        ({"model": ""}, "method draft_model needs model"),
        ({"model": 3}, "Expected `str.*model"),
        ({"method": "ngram", "model": "org/small"}, "model is 'org/small'; method ngram takes none"),
        ({"method": "ngram", "tokens": 3}, "unknown tokens; allowed: method, model, num_speculative_tokens"),
        ({"method": "ngram", "num_speculative_tokens": 0}, "Expected `int` >= 1.*num_speculative_tokens"),
        ({"method": "ngram", "num_speculative_tokens": 17}, "Expected `int` <= 16.*num_speculative_tokens"),
        ({"method": "ngram", "num_speculative_tokens": "3"}, "Expected `int`.*num_speculative_tokens"),
        ({"method": "ngram", "num_speculative_tokens": True}, "Expected `int`.*num_speculative_tokens"),
        ({"method": "ngram", "prompt_lookup_min": 0}, "Expected `int` >= 1.*prompt_lookup_m"),
        ({"method": "ngram", "prompt_lookup_max": 65}, "Expected `int` <= 64.*prompt_lookup_m"),
        (
            {"method": "ngram", "prompt_lookup_min": 4, "prompt_lookup_max": 3},
            "prompt_lookup_min is 4; it must not exceed prompt_lookup_max, 3",
        ),
        ({"model": "org/small", "prompt_lookup_max": 3}, "method draft_model has no lookup"),
    ],
    ids=str,
)
def test_wrong_settings_are_refused_with_what_is_allowed(
    tiny_llama: Path, settings: Any, reason: str
) -> None:
    with pytest.raises(
        ValueError, match=f"speculative_config is .*{reason.removeprefix('speculative_config is ')}"
    ):
        resolve(tiny_llama, settings)


def test_pooling_models_refuse_speculation(tiny_llama: Path) -> None:
    with pytest.raises(ValueError, match="speculative_config is set; a pooling model generates no tokens"):
        resolve(tiny_llama, {"method": "ngram"}, runner="pooling")
