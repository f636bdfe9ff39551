"""Settings of engines that belong to the operator, and specs that give them."""

from typing import Any

import pytest
from llm_operator.api.rules import OWNED_FLAGS
from llm_operator.api.schema import SpecError
from llm_operator.plan.pod.own_settings import (
    ADMIN_FLAGS,
    ADMIN_VARIABLES,
    ROUTER_FLAGS,
    ROUTER_VARIABLES,
    variable_of,
)
from llm_operator.settings import Settings

from engine_server.engine.engine_args import AsyncEngineArgs
from engine_server.server.arguments import ServerArgs
from engine_server.server.settings import ApiSettings
from engine_server.server.sources import ADMIN_KEY, PREFIX, VLLM_VARIABLES
from engine_server.server.sources import Settings as EngineSettings

WITH_KEYS = Settings(engine_image="engine:1", engine_keys=True)
WITHOUT_KEYS = Settings(engine_image="engine:1")
ADAPTERS: dict[str, Any] = {"adapters": []}


def engine_env(name: str) -> dict[str, Any]:
    return {"engine": {"env": [{"name": "OTHER", "value": "1"}, {"name": name, "value": "1"}]}}


def template_env(name: str, container: str = "engine") -> dict[str, Any]:
    context = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    variables = [{"name": name, "value": "1"}]
    given = {"name": container, "image": "engine:1", "securityContext": context, "env": variables}
    return {"podTemplate": {"spec": {"containers": [given]}}}


@pytest.mark.parametrize(
    ("spec", "settings", "path"),
    [
        (engine_env("FAIRLEAD_MAX_MODEL_LEN"), WITHOUT_KEYS, "spec.engine.env[1]"),
        (engine_env("FAIRLEAD_TENSOR_PARALLEL_SIZE"), WITHOUT_KEYS, "spec.engine.env[1]"),
        (engine_env("FAIRLEAD_ADAPTERS_FILE"), WITHOUT_KEYS, "spec.engine.env[1]"),
        (
            template_env("FAIRLEAD_MAX_MODEL_LEN"),
            WITHOUT_KEYS,
            "spec.podTemplate.spec.containers[0].env[0]",
        ),
        (engine_env("FAIRLEAD_API_KEY"), WITH_KEYS, "spec.engine.env[1]"),
        (engine_env("VLLM_API_KEY"), WITH_KEYS, "spec.engine.env[1]"),
        (template_env("FAIRLEAD_ADMIN_KEY"), WITH_KEYS, "spec.podTemplate.spec.containers[0].env[0]"),
        (ADAPTERS | engine_env("FAIRLEAD_ADMIN_KEY"), WITHOUT_KEYS, "spec.engine.env[1]"),
        ({"engine": {"args": ["--seed=1", "--api-key-file=/mine"]}}, WITH_KEYS, "spec.engine.args[1]"),
        ({"engine": {"args": ["--no-enable-admin"]}}, WITH_KEYS, "spec.engine.args[0]"),
        (ADAPTERS | {"engine": {"args": ["--admin_port", "1"]}}, WITHOUT_KEYS, "spec.engine.args[0]"),
    ],
)
def test_a_spec_that_sets_what_the_operator_sets_is_refused_with_the_path(
    planned: Any, manifest: Any, spec: dict[str, Any], settings: Settings, path: str
) -> None:
    with pytest.raises(SpecError) as refused:
        planned(manifest(**spec), settings=settings)

    assert refused.value.path == path


@pytest.mark.parametrize(
    ("spec", "settings"),
    [
        (engine_env("HF_HOME"), WITH_KEYS),
        (engine_env("FAIRLEAD_SEED"), WITH_KEYS),
        (engine_env("FAIRLEAD_API_KEY"), WITHOUT_KEYS),
        (engine_env("FAIRLEAD_ADMIN_KEY"), WITHOUT_KEYS),
        (template_env("FAIRLEAD_ADMIN_KEY", container="sidecar"), WITH_KEYS),
        ({"engine": {"args": ["--enable-admin", "--admin-port=1"]}}, WITHOUT_KEYS),
        ({"engine": {"args": ["--enable-prefix-caching"]}}, WITH_KEYS),
    ],
)
def test_other_settings_are_the_specs(
    planned: Any, manifest: Any, spec: dict[str, Any], settings: Settings
) -> None:
    assert planned(manifest(**spec), settings=settings).template


def test_a_profile_may_set_variables_of_the_operator(planned: Any, manifest: Any) -> None:
    profile = template_env("FAIRLEAD_MAX_MODEL_LEN")
    settings = Settings(engine_image="engine:1", profiles={"short": profile})

    assert planned(manifest(profile="short"), settings=settings).template


def test_what_runs_with_a_variable_that_is_refused_now_is_kept_and_scaled(
    planned: Any, manifest: Any
) -> None:
    variables = [{"name": "FAIRLEAD_ADMIN_KEY", "value": "mine"}]
    old = planned(manifest(engine={"env": variables}))

    scaled = planned(manifest(engine={"env": variables}, replicas=3), old.observed, WITH_KEYS)

    assert scaled.template == old.template
    assert scaled.child("Deployment")["spec"]["replicas"] == 3
    with pytest.raises(SpecError):
        planned(manifest(engine={"env": variables, "maxModelLen": 8}), old.observed, WITH_KEYS)


def test_names_are_those_that_the_engine_reads() -> None:
    engine = EngineSettings("fairlead engine", "", AsyncEngineArgs, ApiSettings, ServerArgs)
    flags = (*OWNED_FLAGS, *ROUTER_FLAGS, *ADMIN_FLAGS)
    settings = {flag.removeprefix("--").removeprefix("no-").replace("-", "_") for flag in flags}

    assert settings <= vars(engine.read([], {})).keys()
    assert {variable_of(flag) for flag in ROUTER_FLAGS} == {f"{PREFIX}API_KEY", f"{PREFIX}API_KEY_FILE"}
    assert set(ROUTER_VARIABLES) == set(VLLM_VARIABLES.values())
    assert ADMIN_VARIABLES == (ADMIN_KEY,)
