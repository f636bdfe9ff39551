"""Settings that have no effect without a cluster."""

from typing import Any

from llm_local.left_out import LEFT_OUT, left_out
from llm_operator.api.schema import fields_of
from llm_operator.api.spec import LLMDeployment

# The fields of a spec that a local process honours, and those that are refused.
USED = {
    "spec.model.uri",
    "spec.model.servedNames",
    "spec.adapters",
    "spec.engine.maxModelLen",
    "spec.engine.args",
    "spec.engine.env",
    "spec.resources.gpu",
    "spec.replicas",
    "spec.routing.policy",
    "spec.rollout.drainTimeoutSeconds",
}
REFUSED = {"spec.engine.envFrom", "spec.engine.files"}


def test_every_field_of_a_spec_is_used_refused_or_named() -> None:
    paths = {path for path, _ in fields_of(LLMDeployment) if path.startswith("spec.")}
    leaves = {path for path in paths if not any(other.startswith(f"{path}.") for other in paths)}
    known = USED | REFUSED | set(LEFT_OUT)

    unknown = {
        path for path in leaves if not any(path == each or path.startswith(f"{each}.") for each in known)
    }

    assert unknown == set()
    assert known <= paths


def test_each_field_without_an_effect_is_named_with_the_reason(manifest: Any) -> None:
    document = manifest(
        profile="l4", autoscaling={"max": 3}, resources={"gpu": 1, "memory": "4Gi"}, budget=None
    )
    document["spec"]["model"]["secretRef"] = {"name": "hub"}

    assert left_out(document) == [
        "spec.model.secretRef has no effect here: the token of the hub and the keys of S3 come from your environment",
        "spec.resources.memory has no effect here: nothing limits the memory of processes",
        "spec.autoscaling has no effect here: the number of replicas stays as it is",
        "spec.profile has no effect here: only an operator has profiles",
    ]


def test_a_model_without_a_manifest_leaves_nothing_out(manifest: Any) -> None:
    assert left_out(manifest()) == []
