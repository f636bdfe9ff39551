"""Profiles under the spec."""

from typing import Any

import pytest
from llm_operator.api.schema import SpecError
from llm_operator.observed import Observed
from llm_operator.settings import Settings

PROFILES = {
    "gpu-l4": {
        "resources": {"gpu": 1, "memory": "24Gi", "shm": "1Gi"},
        "podTemplate": {
            "metadata": {"labels": {"team": "ml"}},
            "spec": {"nodeSelector": {"gpu": "l4"}, "tolerations": [{"key": "l4", "operator": "Exists"}]},
        },
    },
    "identity": {"podTemplate": {"spec": {"serviceAccountName": "shared"}}},
    "node-local": {"podTemplate": {"spec": {"volumes": [{"name": "v", "hostPath": {"path": "/"}}]}}},
}
SETTINGS = Settings(engine_image="engine:1", profiles=PROFILES)


def test_a_profiles_values_hold_where_the_spec_has_none(planned: Any, manifest: Any) -> None:
    given = manifest(
        profile="gpu-l4",
        resources={"memory": "48Gi", "cpu": 4},
        podTemplate={
            "metadata": {"labels": {"team": "chat"}},
            "spec": {"nodeSelector": {"zone": "a"}, "tolerations": [{"key": "spot", "operator": "Exists"}]},
        },
    )

    goal = planned(given, settings=SETTINGS)

    assert goal.engine["resources"] == {
        "requests": {"cpu": "4", "memory": "48Gi"},
        "limits": {"memory": "48Gi", "nvidia.com/gpu": "1"},
    }
    assert goal.pod["nodeSelector"] == {"gpu": "l4", "zone": "a"}
    assert [entry["key"] for entry in goal.pod["tolerations"]] == ["nvidia.com/gpu", "l4", "spot"]
    assert goal.template["metadata"]["labels"]["team"] == "chat"
    (shm,) = (volume for volume in goal.pod["volumes"] if volume["name"] == "shm")
    assert shm["emptyDir"]["sizeLimit"] == "1Gi"


def test_what_the_spec_gives_takes_precedence_even_if_it_is_zero_or_empty(
    planned: Any, manifest: Any
) -> None:
    profile = {
        "resources": {"gpu": 1, "cpu": 4, "memory": "24Gi"},
        "podTemplate": {
            "spec": {
                "priorityClassName": "high",
                "nodeSelector": {"gpu": "l4"},
                "imagePullSecrets": [{"name": "registry"}],
                "topologySpreadConstraints": [{"topologyKey": "zone"}],
            }
        },
    }
    given = manifest(
        profile="full",
        resources={"gpu": 0, "cpu": 0},
        podTemplate={
            "spec": {
                "priorityClassName": "",
                "topologySpreadConstraints": [],
                # Objects and lists that are merged are removed by null, as in the operator's own template.
                "nodeSelector": None,
                "imagePullSecrets": None,
            }
        },
    )

    goal = planned(given, settings=Settings(engine_image="engine:1", profiles={"full": profile}))

    assert goal.engine["resources"] == {
        "requests": {"cpu": "0", "memory": "24Gi"},
        "limits": {"memory": "24Gi"},
    }
    assert "tolerations" not in goal.pod
    assert (goal.pod["priorityClassName"], goal.pod["topologySpreadConstraints"]) == ("", [])
    assert not {"nodeSelector", "imagePullSecrets"} & goal.pod.keys()


def test_an_unknown_profile_is_refused_with_the_known_ones(planned: Any, manifest: Any) -> None:
    with pytest.raises(SpecError, match="no profile 'l4'; it has: gpu-l4, identity, node-local"):
        planned(manifest(profile="l4"), settings=SETTINGS)
    with pytest.raises(SpecError, match="it has: none"):
        planned(manifest(profile="l4"))


@pytest.mark.parametrize("profiles", [{"gpu-l4": {"resources": {"gpu": 2}}}, {}])
def test_a_changed_or_removed_profile_rolls_nothing(
    planned: Any, manifest: Any, profiles: dict[str, Any]
) -> None:
    before = planned(manifest(profile="gpu-l4"), settings=SETTINGS)
    changed = Settings(engine_image="engine:1", profiles=profiles)

    after = planned(manifest(profile="gpu-l4", replicas=3), before.observed, changed)

    assert after.template == before.template


def test_a_change_of_the_spec_takes_the_changed_profile(planned: Any, manifest: Any) -> None:
    before = planned(manifest(profile="gpu-l4"), settings=SETTINGS)
    changed = Settings(engine_image="engine:1", profiles={"gpu-l4": {"resources": {"gpu": 2}}})

    after = planned(manifest(profile="gpu-l4", resources={"cpu": 1}), before.observed, changed)

    assert after.engine["resources"]["limits"] == {"nvidia.com/gpu": "2"}
    assert "--tensor-parallel-size=2" in after.engine["args"]


def test_an_administrators_profile_may_choose_the_service_account(planned: Any, manifest: Any) -> None:
    assert planned(manifest(profile="identity"), settings=SETTINGS).pod["serviceAccountName"] == "shared"


def test_pod_security_holds_for_profiles_too(planned: Any, manifest: Any) -> None:
    with pytest.raises(SpecError, match=r"volumes\[v\]\.hostPath"):
        planned(manifest(profile="node-local"), settings=SETTINGS)


def test_without_a_profile_nothing_changes(planned: Any, manifest: Any) -> None:
    assert planned(manifest(), Observed(), SETTINGS).template == planned(manifest()).template
