"""The watch, against a small API server that fails on demand."""

import time

import pytest
from fake_api import event
from kubernetes_objects import endpoint, llmd, slice_of

from engine_server.contract.cluster import page_size
from engine_server.contract.cluster.labels import LLMDEPLOYMENT_LABEL as LABEL
from engine_server.router.sources.kubernetes import watch
from engine_server.router.sources.kubernetes.access import Access


def metadata(name: str, namespace: str = "x", version: str = "7") -> dict:
    return {"name": name, "namespace": namespace, "resourceVersion": version}


async def test_is_not_synced_before_the_first_list(api, follow, eventually):
    api.failures = 3
    followed = await follow(Access(api.url), synced=False)
    assert not followed.source.synced
    await eventually(lambda: followed.source.synced)
    assert api.failures == 0


async def test_reads_all_pages_of_a_list(api, follow):
    api.page = 2
    api.items["llmdeployments"] = [llmd(**metadata(f"m{n}")) for n in range(5)]
    followed = await follow(Access(api.url))
    assert list(followed.directory.models()) == [f"m{n}" for n in range(5)]
    assert api.lists == 4
    limits = {(query["kind"], query["limit"]) for query in api.queries if "limit" in query}
    # Pages grow while objects are small.
    assert limits >= {("llmdeployments", "25"), ("llmdeployments", "50"), ("endpointslices", "25")}


async def test_of_a_page_that_is_too_large_no_more_is_read_and_fewer_objects_are_asked_for(
    api, follow, monkeypatch
):
    monkeypatch.setattr(page_size, "LARGEST_PAGE_BYTES", 200_000)
    api.items["llmdeployments"] = [
        llmd(**metadata(f"m{n}"), annotations={"a": "x" * 60_000}) for n in range(5)
    ]
    followed = await follow(Access(api.url))
    assert sorted(followed.directory.models()) == [f"m{n}" for n in range(5)]
    limits = [
        query["limit"] for query in api.queries if query["kind"] == "llmdeployments" and "limit" in query
    ]
    assert limits[:4] == ["25", "12", "6", "3"]


async def test_slices_of_other_services_and_other_labels_are_not_kept(api, follow, eventually):
    foreign = slice_of("m", "foreign", endpoint("10.0.0.9"), namespace="x", service="other")
    own = slice_of("m", "own", endpoint("10.0.0.1"), namespace="x")
    own["metadata"]["labels"]["large"] = "x" * 100_000
    api.items["llmdeployments"] = [llmd(**metadata("m"))]
    api.items["endpointslices"] = [foreign, own]
    followed = await follow(Access(api.url))
    (kept,) = followed.source._watches[1][2]._objects.values()
    assert kept.metadata.name == "own" and "large" not in str(kept)
    assert followed.live("m") == ["http://10.0.0.1:8000"]

    events = api.watches["endpointslices"]
    events.put_nowait(event("ADDED", foreign))
    own["metadata"]["labels"]["kubernetes.io/service-name"] = "other"
    events.put_nowait(event("MODIFIED", own))
    await eventually(lambda: followed.live("m") == [])
    assert not followed.source._watches[1][2]._objects


async def test_a_watch_continues_from_the_last_version_or_bookmark(api, follow, eventually):
    await follow(Access(api.url))
    events = api.watches["llmdeployments"]
    bookmark = {"kind": "LLMDeployment", "metadata": {"resourceVersion": "99"}}
    for data in (event("ADDED", llmd(**metadata("m", version="8"))), event("BOOKMARK", bookmark), None):
        events.put_nowait(data)
    await eventually(lambda: any(q.get("resourceVersion") == "99" for q in api.queries))
    assert api.lists == 2
    first = next(q for q in api.queries if "watch" in q)
    assert first["resourceVersion"] == "7" and first["allowWatchBookmarks"] == "true"
    assert {q.get("labelSelector") for q in api.queries if q["kind"] == "endpointslices"} == {LABEL}


@pytest.mark.parametrize("failure", ["gone", "garbage", "cut"])
async def test_a_list_finds_changes_that_the_watch_missed(api, follow, eventually, failure):
    """A deletion is among the changes."""
    api.items["llmdeployments"] = [llmd(**metadata("old"))]
    api.items["endpointslices"] = [slice_of("old", "s", endpoint("10.0.0.1"), namespace="x")]
    followed = await follow(Access(api.url))
    assert followed.live("old") == ["http://10.0.0.1:8000"]
    api.items["llmdeployments"] = [llmd(**metadata("new"))]
    last = event("ERROR", {"kind": "Status", "code": 410, "message": "too old resource version"})
    if failure == "cut":
        last = event("ADDED", llmd(**metadata("half")))[:30]
    api.watches["llmdeployments"].put_nowait(b"{]\n" if failure == "garbage" else last)
    api.watches["llmdeployments"].put_nowait(None)
    if failure == "cut":  # half a line at the end of a watch is no event
        api.watches["llmdeployments"].put_nowait(event("ERROR", {"message": "now list"}))
    await eventually(lambda: followed.live("old") is None and followed.live("new") == [])
    assert followed.live("half") is None


async def test_lists_again_at_intervals(api, follow, eventually, monkeypatch):
    monkeypatch.setattr(watch, "RELIST_SECONDS", 0.0)
    followed = await follow(Access(api.url))
    api.items["llmdeployments"] = [llmd(**metadata("m"))]
    await eventually(lambda: followed.live("m") == [])


async def test_pauses_between_watches_that_end_as_soon_as_they_begin(api, follow, eventually):
    await follow(Access(api.url))
    watches = 20
    started = time.monotonic()
    for _ in range(watches):
        api.watches["llmdeployments"].put_nowait(None)
    await eventually(
        lambda: sum(q["kind"] == "llmdeployments" and "watch" in q for q in api.queries) > watches
    )
    assert time.monotonic() - started >= (watches - 1) * watch.FIRST_PAUSE_SECONDS / 2


async def test_reads_an_event_larger_than_any_buffer(api, follow, eventually):
    followed = await follow(Access(api.url))
    pods = [endpoint(f"10.{n // 250}.0.{n % 250 + 1}", f"pod-{n}-{'x' * 200}") for n in range(3000)]
    api.watches["llmdeployments"].put_nowait(event("ADDED", llmd(**metadata("m"))))
    api.watches["endpointslices"].put_nowait(event("ADDED", slice_of("m", "s", *pods, namespace="x")))
    await eventually(lambda: len(followed.live("m") or ()) == 3000)


async def test_only_serving_endpoints_that_do_not_terminate_get_requests(api, follow):
    api.items["llmdeployments"] = [llmd(**metadata("m"))]
    api.items["endpointslices"] = [
        slice_of(
            "m", "six", endpoint("fd00::1", "both"), endpoint("fd00::2", "six"), family="IPv6", namespace="x"
        ),
        slice_of(
            "m",
            "four",
            endpoint("10.0.0.1", "both"),
            endpoint("10.0.0.2", "loading", ready=False, serving=False),
            endpoint("10.0.0.3", "old-kubelet", ready=True),
            endpoint("10.0.0.4", "leaving", ready=False, serving=True, terminating=True),
            endpoint("10.0.0.5", ready=True, serving=True, terminating=False),
            namespace="x",
        ),
        slice_of("m", "named", endpoint("a.example"), family="FQDN", namespace="x"),
    ]
    followed = await follow(Access(api.url))
    assert followed.live("m") == [
        f"http://{h}:8000" for h in ("10.0.0.1", "10.0.0.3", "10.0.0.5", "[fd00::2]")
    ]
