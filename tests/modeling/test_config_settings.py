"""Settings of config.json: where a change changes the logits of transformers, ours change equally or it is refused."""

import json
from pathlib import Path

import config_settings
import pytest
from architectures import ARCHITECTURES, Architecture
from config_settings import EQUAL, REFUSED, Finding, Walk, changes, read_table, settings_of, summary
from tiers import tiered

OUTDATED = f"run python {config_settings.__file__}"
# One of each replacement: activations, norms, ropes, routers.
QUICK = {
    "qwen3-moe": ("hidden_act", "rms_norm_eps", "norm_topk_prob", "rope_parameters.rope_theta"),
    "gemma 2": ("attn_logit_softcapping", "query_pre_attn_scalar"),
}
BY_NAME = {one.name: one for one in ARCHITECTURES}


def findings_of(name: str) -> list[Finding]:
    return [one for one in read_table() if one.architecture == name]


def test_nothing_in_the_table_differs() -> None:
    assert {one.verdict for one in read_table()} <= {EQUAL, REFUSED}
    assert all(bool(one.reason) == (one.verdict == REFUSED) for one in read_table())


def test_the_document_has_the_numbers_of_the_table() -> None:
    assert summary(read_table()) in config_settings.PAGE.read_text()


@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=lambda one: one.name)
def test_the_table_has_changes_of_settings_that_transformers_has(architecture: Architecture) -> None:
    tried = {(key, json.dumps(value)) for key, value, _ in changes(settings_of(architecture))}
    found = {(one.key, one.value) for one in findings_of(architecture.name)}
    assert found and found <= tried, OUTDATED


@pytest.mark.parametrize("name", tiered(QUICK, "qwen3-moe", more=["gemma 2"]))
def test_a_changed_setting_has_the_effect_that_it_has_in_transformers(name: str, tmp_path: Path) -> None:
    found = list(Walk(BY_NAME[name], tmp_path).findings(QUICK[name]))
    assert found and found == [one for one in findings_of(name) if one.key in QUICK[name]], OUTDATED


@pytest.mark.thorough
@pytest.mark.parametrize("name", BY_NAME)
def test_every_changed_setting_has_the_effect_that_it_has_in_transformers(name: str) -> None:
    found = config_settings.walk_in_process(name)
    assert [one[:4] for one in found] == [one[:4] for one in findings_of(name)], OUTDATED
