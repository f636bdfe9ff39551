"""Settings of engines that belong to the operator, and specs that give them."""

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from llm_operator.api.rules import OWNED_FLAGS
from llm_operator.api.schema import SpecError
from llm_operator.plan.pod import own_settings as own_settings_module
from llm_operator.plan.pod.engine_command import FLAGS, flag_of, setting_of
from llm_operator.plan.pod.own_settings import ADMIN_VARIABLE, LEFT_OUT, SHARED, own_settings, variable_of
from llm_operator.settings import Settings

from engine_server.engine.engine_args import AsyncEngineArgs
from engine_server.server.arguments import ServerArgs
from engine_server.server.command import adapter_defaults
from engine_server.server.settings import ApiSettings
from engine_server.server.sources import ADMIN_KEY, PREFIX
from engine_server.server.sources import Settings as EngineSettings

WITH_KEYS = Settings(engine_image="engine:1", engine_keys=True)
WITHOUT_KEYS = Settings(engine_image="engine:1")
ADAPTERS: dict[str, Any] = {"adapters": []}
ENGINE = EngineSettings("fairlead engine", "", AsyncEngineArgs, ApiSettings, ServerArgs)
ENGINE_SETTINGS = vars(ENGINE.read([], {}))


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
        (engine_env("FAIRLEAD_API_KEY_FILE"), WITH_KEYS, "spec.engine.env[1]"),
        (engine_env("FAIRLEAD_UDS"), WITHOUT_KEYS, "spec.engine.env[1]"),
        (engine_env("FAIRLEAD_SSL_CERTFILE"), WITHOUT_KEYS, "spec.engine.env[1]"),
        (template_env("FAIRLEAD_ADMIN_KEY"), WITH_KEYS, "spec.podTemplate.spec.containers[0].env[0]"),
        (ADAPTERS | engine_env("FAIRLEAD_ADMIN_KEY"), WITHOUT_KEYS, "spec.engine.env[1]"),
        ({"engine": {"args": ["--seed=1", "--api-key-file=/mine"]}}, WITH_KEYS, "spec.engine.args[1]"),
        ({"engine": {"args": ["--no-enable-admin"]}}, WITH_KEYS, "spec.engine.args[0]"),
        (ADAPTERS | {"engine": {"args": ["--admin_port", "1"]}}, WITHOUT_KEYS, "spec.engine.args[0]"),
        ({"engine": {"args": ["--admin-port=9000"]}}, WITHOUT_KEYS, "spec.engine.args[0]"),
        ({"engine": {"args": ["--enable-admin"]}}, WITHOUT_KEYS, "spec.engine.args[0]"),
        ({"engine": {"args": ["--uds=/tmp/engine.sock"]}}, WITHOUT_KEYS, "spec.engine.args[0]"),
        ({"engine": {"args": ["--root-path=/v2"]}}, WITHOUT_KEYS, "spec.engine.args[0]"),
        ({"engine": {"args": ["--ssl-certfile", "/a"]}}, WITHOUT_KEYS, "spec.engine.args[0]"),
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
        (engine_env("FAIRLEAD_API_KEY"), WITH_KEYS),
        (engine_env("VLLM_API_KEY"), WITH_KEYS),
        (engine_env("FAIRLEAD_API_KEY_FILE"), WITHOUT_KEYS),
        (engine_env("FAIRLEAD_ADMIN_KEY"), WITHOUT_KEYS),
        (template_env("FAIRLEAD_ADMIN_KEY", container="sidecar"), WITH_KEYS),
        ({"engine": {"args": ["--api-key=mine"]}}, WITH_KEYS),
        ({"engine": {"args": ["--api-key-file=/mine"]}}, WITHOUT_KEYS),
        (ADAPTERS | {"engine": {"args": ["--enable-lora", "--max-loras=2"]}}, WITH_KEYS),
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


@pytest.mark.parametrize(
    "engine",
    [
        {"env": [{"name": "FAIRLEAD_ADMIN_KEY", "value": "mine"}]},
        {"args": ["--enable-admin", "--admin-port=9000"]},
        {"args": ["--root-path=/v2"]},
    ],
)
def test_what_runs_with_a_setting_that_is_refused_now_is_kept_and_scaled(
    planned: Any, manifest: Any, monkeypatch: pytest.MonkeyPatch, engine: dict[str, Any]
) -> None:
    with monkeypatch.context() as earlier_release:
        earlier_release.setattr(own_settings_module, "check", lambda deployment, settings: None)
        old = planned(manifest(engine=engine))

    scaled = planned(manifest(engine=engine, replicas=3), old.observed, WITH_KEYS)

    assert scaled.template == old.template
    assert scaled.child("Deployment")["spec"]["replicas"] == 3
    with pytest.raises(SpecError):
        planned(manifest(engine=engine | {"maxModelLen": 8}), old.observed, WITH_KEYS)


def read_by_an_engine(arguments: list[str]) -> dict[str, Any] | None:
    """Return the settings that an engine takes from its command line; None if it refuses it."""
    try:
        return vars(ENGINE.read(arguments[1:], {}, adapter_defaults))
    except SystemExit:
        return None


@example(name="model", spelling="--{}=1", is_underscored=False, adapters={}, settings=WITH_KEYS)
@given(
    name=st.sampled_from(sorted(ENGINE_SETTINGS)),
    spelling=st.sampled_from(("--{}=1", "--{}=/a", "--{}", "--no-{}")),
    is_underscored=st.booleans(),
    adapters=st.sampled_from(({}, ADAPTERS)),
    settings=st.sampled_from((WITH_KEYS, WITHOUT_KEYS)),
)
def test_no_flag_of_a_spec_changes_what_the_operator_sets(
    planned: Any,
    manifest: Any,
    name: str,
    spelling: str,
    is_underscored: bool,
    adapters: dict[str, Any],
    settings: Settings,
) -> None:
    spelled = name if is_underscored else name.replace("_", "-")
    argument = spelling.format(spelled)
    usual = read_by_an_engine(planned(manifest(**adapters), settings=settings).engine["args"])

    try:
        plan = planned(manifest(**adapters, engine={"args": [argument]}), settings=settings)
    except SpecError as refused:
        assert refused.path == "spec.engine.args[0]"
        assert name in own_settings(settings) or f"--{spelled}" in OWNED_FLAGS
        return

    found = read_by_an_engine(plan.engine["args"])
    assert plan.engine["args"][-1] == argument
    if usual is not None and found is not None:
        assert {each: found[each] for each in own_settings(settings)} == {
            each: usual[each] for each in own_settings(settings)
        }


def test_names_are_those_that_the_engine_reads() -> None:
    given = {*FLAGS, *LEFT_OUT, *map(setting_of, OWNED_FLAGS)}
    reached_by = {name for name in ENGINE_SETTINGS if name.startswith(("ssl_", "admin_"))}

    assert given <= ENGINE_SETTINGS.keys()
    assert reached_by <= own_settings(WITHOUT_KEYS)
    assert set(OWNED_FLAGS) - {"--model"} <= set(map(flag_of, own_settings(WITHOUT_KEYS)))
    assert set(SHARED) < set(FLAGS)
    assert variable_of("api_key_file") == f"{PREFIX}API_KEY_FILE"
    assert ADMIN_VARIABLE == ADMIN_KEY
