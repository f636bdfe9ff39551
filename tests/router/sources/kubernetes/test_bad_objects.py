"""Objects that cannot be read, among others that can."""

import json

import pytest
from fake_api import event
from kubernetes_objects import endpoint, llmd, nested_llmd, slice_of

from engine_server.router.callers.account import Account
from engine_server.router.callers.keys import KeyEntry
from engine_server.router.sources.kubernetes.access import Access, from_kubeconfig

# The API server's own limit is 10,000.
LEVELS = 1500
WRONG = {"replicas": "many"}


async def test_an_object_that_is_nested_too_deeply_keeps_no_other_from_being_read(
    api_server, namespaces, follow, eventually
):
    red, blue = namespaces
    a, b, poisoned = (f"{each}-{red.namespace}" for each in ("a", "b", "poisoned"))
    red.apply(llmd(a), slice_of(a, "a-1", endpoint("10.0.0.1")))
    red.call("POST", red.path("llmd"), nested_llmd(poisoned, LEVELS))

    followed = await follow(from_kubeconfig(api_server.kubeconfig))

    assert followed.live(a) == ["http://10.0.0.1:8000"]
    assert followed.live(poisoned) == []
    red.delete("llmd", poisoned)
    red.call("POST", red.path("llmd"), nested_llmd(f"{poisoned}-2", LEVELS))
    await eventually(lambda: followed.live(f"{poisoned}-2") == [])
    blue.apply(llmd(b))
    await eventually(lambda: followed.live(b) == [])
    assert [watch.failures for watch in followed.source.watches()] == [0, 0]


@pytest.mark.parametrize("position", range(4))
async def test_an_object_with_a_wrong_type_is_skipped_and_named_wherever_it_is(
    api, follow, eventually, caplog, position
):
    good = [llmd(f"m{number}", namespace="x", resourceVersion="7") for number in range(3)]
    bad = llmd("bad", spec=WRONG, namespace="x", resourceVersion="7")
    api.items["llmdeployments"] = [*good[:position], bad, *good[position:]]
    followed = await follow(Access(api.url))
    assert sorted(followed.directory.models()) == ["m0", "m1", "m2"]
    assert "x/bad" in caplog.text

    events = api.watches["llmdeployments"]
    for changed in (bad, llmd("m4", namespace="x", resourceVersion="9")):
        events.put_nowait(event("MODIFIED", changed))
    await eventually(lambda: followed.directory.resolve("m4") is not None)
    assert caplog.text.count("x/bad") == 1
    assert api.lists == 2


async def test_an_object_that_becomes_unreadable_counts_as_it_was(api, follow, eventually):
    api.items["llmdeployments"] = [llmd("m", namespace="x", resourceVersion="7")]
    followed = await follow(Access(api.url))
    api.items["llmdeployments"] = [llmd("m", spec=WRONG, namespace="x", resourceVersion="8")]
    events = api.watches["llmdeployments"]
    gone = {"kind": "Status", "code": 410, "message": "too old"}
    events.put_nowait(event("MODIFIED", api.items["llmdeployments"][0]))
    events.put_nowait(json.dumps({"type": "ERROR", "object": gone}).encode() + b"\n")
    events.put_nowait(None)
    await eventually(lambda: api.lists == 3)
    assert followed.live("m") == []


@pytest.mark.parametrize("taken", ["victim/llama", "lla\x1b[2Jma", "lla\u0085ma", "lla\u200bma"])
async def test_a_name_of_another_namespace_or_for_no_terminal_claims_nothing(api, follow, taken):
    served = llmd("llama", taken, "mine", namespace="evil", resourceVersion="7")
    served["spec"]["adapters"] = [{"name": taken, "uri": "hf://org/adapter"}]
    api.items["llmdeployments"] = [served]

    followed = await follow(Access(api.url))

    assert followed.directory.resolve(taken) is None
    assert followed.live("mine") == followed.live("evil/llama") == []
    assert sorted(followed.directory.models()) == ["mine"]


async def test_a_deployment_may_have_the_name_of_a_repository_that_cannot_be_another_objects(api, follow):
    names = ("Qwen/Qwen3-0.6B", "openai/gpt-oss-20b", "google/gemma-3-4b-it")
    api.items["llmdeployments"] = [llmd("m", *names, namespace="x", resourceVersion="7")]

    followed = await follow(Access(api.url), organizations=("openai",))

    assert sorted(followed.directory.models()) == ["Qwen/Qwen3-0.6B", "openai/gpt-oss-20b"]


async def test_a_key_for_a_deployment_that_is_absent_opens_no_other(api, follow):
    api.items["llmdeployments"] = [llmd("llama", "victim/llama", namespace="evil", resourceVersion="7")]
    followed = await follow(Access(api.url))
    account = Account(KeyEntry(name="team", sha256="0" * 64, models=("victim/llama",)))

    assert not any(account.may_use(route, followed.directory) for route in followed.directory.routes)
