"""The LLMDeployments whose replicas keep an old pod template after an upgrade."""

from typing import Any

from llm_operator.api.spec import parse
from llm_operator.control.outdated_templates import OutdatedTemplates
from llm_operator.observed import Manifest, Observed
from llm_operator.plan.plan import plan
from llm_operator.settings import Settings

from engine_server.contract.cluster.api import Key

OLD, NEW = Settings(engine_image="engine:1"), Settings(engine_image="engine:2")
KEY = Key("default", "smollm2")


def subject_of(generation: int = 1, rolled_at: str = "", **spec: Any) -> Manifest:
    return {
        "apiVersion": "fairlead.dev/v1alpha1",
        "kind": "LLMDeployment",
        "metadata": {
            "name": KEY.name,
            "namespace": KEY.namespace,
            "generation": generation,
            "annotations": {"fairlead.dev/rolled-at": rolled_at} if rolled_at else {},
        },
        "spec": {"model": {"uri": "hf://org/name"}, **spec},
    }


def applied(subject: Manifest, settings: Settings, before: Observed | None = None) -> Observed:
    """Return the state after an operator has carried out a spec."""
    return Observed(subject=subject, children=plan(parse(subject), before or Observed(), settings).apply)


def test_replicas_of_an_earlier_image_are_outdated_until_they_are_rolled() -> None:
    subject = subject_of()
    old = applied(subject, OLD)
    upgraded = applied(subject, NEW, old)
    rolled = applied(subject_of(rolled_at="now"), NEW, upgraded)

    assert not OutdatedTemplates(OLD).has(old)
    assert OutdatedTemplates(NEW).has(upgraded)
    assert not OutdatedTemplates(NEW).has(rolled)


def test_a_template_is_judged_again_once_it_or_the_spec_has_changed() -> None:
    upgraded = applied(subject_of(), NEW, applied(subject_of(), OLD))
    templates = OutdatedTemplates(NEW)

    assert templates.has(upgraded)
    scaled = applied(subject_of(generation=2, replicas=3), NEW, upgraded)
    assert templates.has(scaled)
    assert not templates.has(applied(subject_of(generation=3, engine={"maxModelLen": 8}), NEW, scaled))
    assert not templates.has(applied(subject_of(generation=3, rolled_at="now"), NEW, scaled))


def test_an_image_of_the_specs_own_is_never_outdated() -> None:
    subject = subject_of(engine={"image": "mine:1"})

    assert not OutdatedTemplates(NEW).has(applied(subject, NEW, applied(subject, OLD)))


def test_replicas_of_a_spec_that_is_refused_by_now_are_outdated() -> None:
    running = applied(subject_of(), OLD)
    refused = subject_of(generation=2, engine={"args": ["--admin-port=9000"]})

    assert OutdatedTemplates(OLD).has(Observed(subject=refused, children=running.children))


def test_nothing_is_known_before_there_is_a_deployment() -> None:
    templates = OutdatedTemplates(OLD)

    assert templates.has(Observed(subject=subject_of())) is None
    templates.forget(KEY)
    assert templates.known == {}
