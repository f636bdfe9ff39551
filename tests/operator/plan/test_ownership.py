"""Children that several LLMDeployments share."""

from typing import Any

import pytest
from llm_operator.api.spec import parse
from llm_operator.observed import ChildKey, Observed
from llm_operator.plan.ownership import child, field_manager, may_apply, shared_child
from llm_operator.settings import Settings

SETTINGS = Settings(engine_image="engine:1")
CLAIM = ChildKey("v1", "PersistentVolumeClaim", "model-cache")


def owned_by(manifest: Any, name: str, uid: str) -> Any:
    given = manifest(name)
    given["metadata"]["uid"] = uid
    return given


def test_owners_apply_the_same_content_under_names_of_their_own(manifest: Any) -> None:
    first, second = (parse(owned_by(manifest, name, name)) for name in ("first", "second"))
    ours = [shared_child(each, CLAIM, SETTINGS, spec={"a": 1}) for each in (first, second)]

    managers = [
        field_manager(planned, each.name) for planned, each in zip(ours, (first, second), strict=True)
    ]

    assert managers == ["fairlead/first", "fairlead/second"]
    for planned in ours:
        (owner,) = planned["metadata"].pop("ownerReferences")
        assert "controller" not in owner
    assert ours[0] == ours[1]


def test_a_child_of_one_llmdeployment_is_applied_under_the_operators_name(manifest: Any) -> None:
    deployment = parse(manifest())

    assert field_manager(child(deployment, CLAIM, SETTINGS), deployment.name) == "fairlead"


def test_a_shared_child_of_another_llmdeployment_may_be_shared(manifest: Any) -> None:
    existing = shared_child(parse(owned_by(manifest, "first", "u-2")), CLAIM, SETTINGS)

    assert may_apply(existing, parse(owned_by(manifest, "second", "u-1")))


def test_a_shared_child_that_is_not_planned_is_released_and_not_deleted(planned: Any, manifest: Any) -> None:
    given = owned_by(manifest, "first", "u-1")
    existing = shared_child(parse(given), CLAIM, SETTINGS)

    goal = planned(given, Observed(children={CLAIM: existing})).goal

    assert (goal.release, goal.delete) == ((CLAIM,), ())


@pytest.mark.parametrize("change", [{"ownerReferences": []}, {"deletionTimestamp": "2026-01-01T00:00:00Z"}])
def test_a_shared_child_is_not_released_by_others_or_twice(
    planned: Any, manifest: Any, change: dict[str, Any]
) -> None:
    given = owned_by(manifest, "first", "u-1")
    existing = shared_child(parse(given), CLAIM, SETTINGS)
    existing["metadata"] |= change

    assert planned(given, Observed(children={CLAIM: existing})).goal.release == ()
