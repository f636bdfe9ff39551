"""The hash of a spec: it covers the fields that pods depend on, and nothing else."""

from typing import Any

import pytest
from llm_operator.api.spec import parse
from llm_operator.api.spec_hash import spec_hash


@pytest.mark.parametrize(
    "change",
    [
        {"replicas": 5},
        {"autoscaling": {"max": 9}},
        {"routing": {"policy": "round_robin"}},
        {"rollout": {"strategy": "inPlace"}},
        {"model": {"uri": "hf://org/name", "servedNames": ["alias"]}},
    ],
)
def test_a_field_that_pods_do_not_depend_on_leaves_the_hash(manifest: Any, change: dict[str, Any]) -> None:
    assert spec_hash(parse(manifest(**change)).spec) == spec_hash(parse(manifest()).spec)


@pytest.mark.parametrize(
    "change",
    [
        {"model": {"uri": "hf://org/other"}},
        {"model": {"uri": "hf://org/name", "secretRef": {"name": "hub"}}},
        {"engine": {"args": ["--seed=1"]}},
        {"resources": {"gpu": 1}},
        {"rollout": {"drainTimeoutSeconds": 61}},
        {"podTemplate": {"spec": {"nodeSelector": {"a": "b"}}}},
    ],
)
def test_a_field_that_pods_depend_on_changes_the_hash(manifest: Any, change: dict[str, Any]) -> None:
    assert spec_hash(parse(manifest(**change)).spec) != spec_hash(parse(manifest()).spec)


@pytest.mark.parametrize(
    "explicit",
    [
        {"engine": {}, "resources": {}, "rollout": {}, "podTemplate": {}},
        {"engine": {"args": [], "env": []}, "resources": {"gpu": 0}},
        {"rollout": {"strategy": "surge", "drainTimeoutSeconds": 60}},
        {"engine": {"image": None}, "podTemplate": None},
    ],
)
def test_a_default_that_is_written_out_leaves_the_hash(manifest: Any, explicit: dict[str, Any]) -> None:
    assert spec_hash(parse(manifest(**explicit)).spec) == spec_hash(parse(manifest()).spec)


def test_zero_gpus_are_a_value_where_there_is_a_profile(manifest: Any) -> None:
    chosen = manifest(profile="gpu-l4")
    without = manifest(profile="gpu-l4", resources={"gpu": 0})

    assert spec_hash(parse(chosen).spec) != spec_hash(parse(without).spec)
