"""The order of variables, on which `$(NAME)` in their values depends."""

import re
from typing import Any

import pytest
from llm_operator.settings import Settings

REFERENCE = re.compile(r"\$\(([^()]+)\)")


def names(container: dict[str, Any]) -> list[str]:
    return [variable["name"] for variable in container["env"]]


def expanded(container: dict[str, Any]) -> dict[str, str]:
    """Return a container's variables as the kubelet sets them: references to earlier ones replaced."""
    values: dict[str, str] = {}
    for variable in container["env"]:
        value = variable.get("value", "from elsewhere")
        values[variable["name"]] = REFERENCE.sub(lambda found: values.get(found[1], found[0]), value)
    return values


def variables(**values: str) -> list[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in values.items()]


def overlay(*containers: str, **values: str) -> dict[str, Any]:
    """Return a podTemplate that gives containers variables."""
    given = [{"name": name, "env": variables(**values)} for name in containers]
    return {
        "spec": {
            "containers": [each for each in given if each["name"] == "engine"],
            "initContainers": [each for each in given if each["name"] == "model"],
        }
    }


def test_a_variable_that_replaces_the_operators_stands_where_the_user_wrote_it(
    planned: Any, manifest: Any
) -> None:
    env = variables(ROOT="/cache/models", HF_HOME="$(ROOT)/hf", CORES="3", OMP_NUM_THREADS="$(CORES)")

    goal = planned(manifest(engine={"env": env}, resources={"cpu": 2}))

    for container in goal.containers:
        assert names(container)[-4:] == ["ROOT", "HF_HOME", "CORES", "OMP_NUM_THREADS"]
        assert expanded(container)["HF_HOME"] == "/cache/models/hf"
        assert expanded(container)["OMP_NUM_THREADS"] == "3"


def test_a_variable_may_refer_to_one_that_was_replaced_before_it(planned: Any, manifest: Any) -> None:
    env = variables(XDG_CACHE_HOME="/cache/own", HOME="$(XDG_CACHE_HOME)/home")

    goal = planned(manifest(engine={"env": env}))

    assert [expanded(container)["HOME"] for container in goal.containers] == ["/cache/own/home"] * 2


def test_a_variable_may_refer_to_a_credential(planned: Any, manifest: Any) -> None:
    model = {"uri": "hf://a/b", "secretRef": {"name": "hub"}}
    env = variables(HEADER="Bearer $(HF_TOKEN)")

    goal = planned(manifest(model=model, engine={"env": env}, adapters=[{"name": "x", "uri": "hf://a/x"}]))

    for container in goal.containers:
        assert names(container)[0] == "HF_TOKEN"
        assert expanded(container)["HEADER"] == "Bearer from elsewhere"


def test_a_variable_replaces_a_credential(planned: Any, manifest: Any, environment: Any) -> None:
    model = {"uri": "s3://bucket/model", "secretRef": {"name": "keys"}}

    goal = planned(manifest(model=model, engine={"env": variables(AWS_REGION="eu-west-1")}))

    assert environment(goal.pod["initContainers"][0])["AWS_REGION"] == "eu-west-1"


def test_variables_of_a_pod_template_stand_in_its_order_after_those_of_the_profile(
    planned: Any, manifest: Any
) -> None:
    containers = ("engine", "model")
    profiles = {"proxied": {"podTemplate": overlay(*containers, HTTPS_PROXY="http://proxy", REGION="eu")}}
    template = overlay(*containers, USERNAME="me", HTTPS_PROXY="http://$(USERNAME)@$(REGION).proxy")

    goal = planned(
        manifest(profile="proxied", podTemplate=template),
        settings=Settings(engine_image="engine:1", profiles=profiles),
    )

    for container in goal.containers:
        assert names(container)[-3:] == ["REGION", "USERNAME", "HTTPS_PROXY"]
        assert expanded(container)["HTTPS_PROXY"] == "http://me@eu.proxy"


@pytest.mark.parametrize("given", [{"ROOT": "/data"}, {"BASE": "/", "ROOT": "$(BASE)data"}])
def test_variables_that_refer_to_one_of_the_pod_template_follow_it(
    planned: Any, manifest: Any, given: dict[str, str]
) -> None:
    env = variables(ROOT="/cache", HF_HOME="$(ROOT)/hf", HUB="$(HF_HOME)/hub", OTHER="1")

    goal = planned(manifest(engine={"env": env}, podTemplate=overlay("engine", **given, LAST="$(HUB)/last")))

    assert expanded(goal.engine)["LAST"] == "/data/hf/hub/last"
    assert names(goal.engine)[-len(given) - 4 :] == ["OTHER", *given, "HF_HOME", "HUB", "LAST"]


def test_variables_that_refer_to_each_other_are_kept(planned: Any, manifest: Any) -> None:
    env = variables(A="$(B)", B="$(A)", C="$(C)")

    goal = planned(manifest(engine={"env": env}, podTemplate=overlay("engine", B="$(A)", C="$(C)")))

    assert sorted(names(goal.engine)[-3:]) == ["A", "B", "C"]


def test_a_download_has_the_variables_of_the_profile_in_their_order(planned: Any, manifest: Any) -> None:
    profile = {"podTemplate": overlay("model", ROOT="/tmp/hub", HF_HOME="$(ROOT)/hf")}

    goal = planned(
        manifest(model={"uri": "hf://a/b", "cache": {"claim": "models"}}, profile="own"),
        settings=Settings(engine_image="engine:1", profiles={"own": profile}),
    )

    (container,) = goal.child("Job")["spec"]["template"]["spec"]["containers"]
    assert expanded(container)["HF_HOME"] == "/tmp/hub/hf"
