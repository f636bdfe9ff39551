"""The operator behind a proxy that fails as API servers and networks do."""

import asyncio
import itertools
import json
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from fault_proxy import Call, Fault, FaultProxy, is_watch, status
from llm_operator.control.resources import WATCHED
from waiting import until

CHILDREN = "deployment,service,serviceaccount"
# A watch that is silent for so long is opened again.
WATCH_SILENCE = 5
RETRY_AFTER = 3
WRITES = ("create", "update", "patch", "delete")


class Site:
    """An operator, and the proxy between it and the API server."""

    def __init__(self, world: Any, proxy: FaultProxy, operator: Any, token_file: Path) -> None:
        self.world = world
        self.proxy = proxy
        self.operator = operator
        self.token_file = token_file

    def versions(self, name: str) -> dict[str, str]:
        """Return the resource version of each child but the Deployment."""
        rows = "jsonpath={range .items[*]}{.kind} {.metadata.resourceVersion}{'\\n'}{end}"
        selector = f"fairlead.dev/llmdeployment={name}"
        text = self.world.kubectl("get", CHILDREN, "-l", selector, "-o", rows)
        found = dict(row.split() for row in text.splitlines())
        del found["Deployment"]
        return found

    def replicas(self, name: str) -> int:
        found: int = self.world.get("deployment", f"{name}-engine")["spec"]["replicas"]
        return found

    def calls_about(self, name: str, since: int = 0) -> list[Call]:
        """Return the calls about an LLMDeployment and its children, from a number of recorded calls on."""
        return [
            call
            for call in self.proxy.calls[since:]
            if any(part in (name, f"{name}-engine") for part in call.path.split("/"))
        ]

    def settle(self, manifest: dict[str, Any]) -> None:
        self.world.apply(manifest)
        name = manifest["metadata"]["name"]
        until(lambda: self.world.get("llmd", name)["status"]["observedGeneration"] == 1)

    def survives(self, name: str, provoke: Callable[[], object], recover: Callable[[], object]) -> None:
        """Edit an LLMDeployment during a fault; afterwards the edit is carried out, and nothing else is written."""
        before = self.versions(name)
        provoke()
        since = len(self.proxy.calls)
        self.world.kubectl("scale", f"llmd/{name}", "--replicas=3")
        recover()
        until(lambda: self.replicas(name) == 3)
        assert self.versions(name) == before
        calls = self.calls_about(name, since)
        written = {call.path.partition("/default/")[2] for call in calls if call.verb in WRITES}
        assert written <= {f"deployments/{name}-engine", f"llmdeployments/{name}/status"}
        assert self.operator.process.poll() is None, self.operator.log.read_text()


@pytest.fixture(scope="module")
def site(world: Any, operator_class: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("proxied")
    proxy = FaultProxy(world.api_server)
    with proxy.running():
        kubeconfig = proxy.kubeconfig(world.service_account("default", "default"), folder / "token")
        flags = ("--namespace=default", "--relist-seconds=5", f"--watch-silence-seconds={WATCH_SILENCE}")
        operator = operator_class(kubeconfig, folder / "operator.log", *flags)
        until(lambda: operator.logged("this operator holds default/fairlead-operator"))
        yield Site(world, proxy, operator, folder / "token")
        code = operator.stop()
    assert code == 0, operator.log.read_text()
    assert "Traceback" not in operator.log.read_text(), operator.log.read_text()


def answering(code: int, **headers: str) -> Fault:
    """Return a fault that answers everything but watches with a status."""

    async def fault(request: web.Request) -> web.StreamResponse | None:
        return None if is_watch(request) else status(code, headers)

    return fault


async def conflict(request: web.Request) -> web.StreamResponse | None:
    return status(409) if request.method == "PATCH" else None


async def gateway_timeout(request: web.Request) -> web.StreamResponse | None:
    return status(504) if request.method == "PATCH" else None


async def compaction(request: web.Request) -> web.StreamResponse | None:
    """Answer a watch with the error that a resource version is too old."""
    if not is_watch(request):
        return None
    response = web.StreamResponse()
    await response.prepare(request)
    error = {"kind": "Status", "apiVersion": "v1", "code": 410, "reason": "Expired", "message": "too old"}
    await response.write(json.dumps({"type": "ERROR", "object": error}).encode() + b"\n")
    return response


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(conflict, id="conflict"),
        pytest.param(answering(500), id="internal-error"),
        pytest.param(gateway_timeout, id="gateway-timeout"),
    ],
)
def test_carries_out_an_edit_after_failed_calls(site: Site, manifest: Any, name: str, fault: Fault) -> None:
    name = name.replace("[", "-").replace("]", "")
    site.settle(manifest(name))
    faulted = site.proxy.faulted

    def recover() -> None:
        until(lambda: site.proxy.faulted >= faulted + 2)
        site.proxy.fault = None

    site.survives(name, lambda: setattr(site.proxy, "fault", fault), recover)


def test_waits_as_long_as_retry_after_asks_for_whatever_happens_meanwhile(
    site: Site, manifest: Any, name: str
) -> None:
    site.settle(manifest(name))
    since = len(site.proxy.calls)

    def refused() -> list[Call]:
        return [call for call in site.calls_about(name, since) if call.status == 429]

    def recover() -> None:
        until(refused)
        # An event about the object, which is no reason to call earlier.
        site.world.kubectl("scale", f"llmd/{name}", "--replicas=2")
        site.world.kubectl("scale", f"llmd/{name}", "--replicas=3")
        until(lambda: len(refused()) == 2)
        site.proxy.fault = None

    fault = answering(429, **{"Retry-After": str(RETRY_AFTER)})
    site.survives(name, lambda: setattr(site.proxy, "fault", fault), recover)

    for call, following in pairwise(site.calls_about(name, since)):
        if call.status == 429:
            assert call.answered_at is not None
            assert following.arrived_at - call.answered_at >= RETRY_AFTER
    after = next(call for call in site.calls_about(name, since) if call.status != 429)
    assert (after.verb, after.status) == ("patch", 200)


def test_repeats_a_write_whose_answer_was_lost_without_changing_anything(
    site: Site, manifest: Any, name: str
) -> None:
    site.settle(manifest(name))
    generation = site.world.get("deployment", f"{name}-engine")["metadata"]["generation"]
    lost: list[str] = []

    async def lose_answer(request: web.Request) -> web.StreamResponse | None:
        if lost or request.method != "PATCH" or not request.path.endswith(f"deployments/{name}-engine"):
            return None
        lost.append(request.path)
        return await site.proxy.carry_out_unanswered(request)

    site.survives(name, lambda: setattr(site.proxy, "fault", lose_answer), lambda: until(lambda: lost))
    until(lambda: site.world.get("llmd", name)["status"]["observedGeneration"] == 2)
    site.proxy.fault = None

    assert site.world.get("deployment", f"{name}-engine")["metadata"]["generation"] == generation + 1


def test_repeats_a_write_that_is_never_answered(site: Site, manifest: Any, name: str) -> None:
    site.settle(manifest(name))
    unanswered: list[str] = []

    async def hang(request: web.Request) -> web.StreamResponse | None:
        if unanswered or request.method != "PATCH" or name not in request.path:
            return None
        unanswered.append(request.path)
        await asyncio.Event().wait()
        return None

    site.survives(name, lambda: setattr(site.proxy, "fault", hang), lambda: until(lambda: unanswered))
    site.proxy.fault = None


def test_carries_out_an_edit_although_watches_are_cut_and_compacted(
    site: Site, manifest: Any, name: str
) -> None:
    site.settle(manifest(name))
    faulted = site.proxy.faulted

    def provoke() -> None:
        site.proxy.fault = compaction
        site.proxy.cut()

    def recover() -> None:
        until(lambda: site.proxy.faulted > faulted)
        site.proxy.fault = None

    site.survives(name, provoke, recover)


def test_finds_an_edit_that_silent_watches_do_not_report(site: Site, manifest: Any, name: str) -> None:
    site.settle(manifest(name))

    async def silence(request: web.Request) -> web.StreamResponse | None:
        if not is_watch(request):
            return None
        response = web.StreamResponse()
        await response.prepare(request)
        await asyncio.Event().wait()
        return response

    def provoke() -> None:
        site.proxy.fault = silence
        site.proxy.cut()

    site.survives(name, provoke, lambda: None)
    site.proxy.fault = None


def test_carries_out_an_edit_after_silence_without_a_restart(site: Site, manifest: Any, name: str) -> None:
    site.settle(manifest(name))

    def recover() -> None:
        until(lambda: site.operator.logged("nothing is reconciled before it does"))
        site.proxy.flow()

    site.survives(name, site.proxy.stall, recover)


def test_takes_a_new_token_when_the_old_one_has_expired(site: Site, manifest: Any, name: str) -> None:
    site.settle(manifest(name))
    old = site.token_file.read_text()

    async def expired(request: web.Request) -> web.StreamResponse | None:
        return status(401) if old in request.headers.get("Authorization", "") else None

    def provoke() -> None:
        site.token_file.write_text(site.world.kubectl("create", "token", "operator", "-n", "default").strip())
        site.proxy.fault = expired
        site.proxy.cut()

    site.survives(name, provoke, lambda: None)
    site.proxy.fault = None


@contextmanager
def proxied_operator(
    world: Any,
    operator_class: Any,
    folder: Path,
    namespace: str,
    *flags: str,
    fault: Fault | None = None,
) -> Iterator[tuple[FaultProxy, Any]]:
    """Run an operator of one namespace behind a proxy of its own."""
    world.kubectl("create", "namespace", namespace)
    proxy = FaultProxy(world.api_server)
    proxy.fault = fault
    with proxy.running():
        account = proxy.kubeconfig(world.service_account(namespace, namespace), folder / "token")
        scope = (f"--namespace={namespace}", f"--lease-namespace={namespace}")
        operator = operator_class(account, folder / "log", *scope, *flags)
        try:
            yield proxy, operator
            assert operator.stop() == 0, operator.log.read_text()
        finally:
            operator.process.kill()
            operator.process.wait()


def test_repairs_drift_that_a_watch_reports_at_once_and_without_a_list(
    world: Any, operator_class: Any, manifest: Any, name: str, tmp_path: Path
) -> None:
    child = f"{name}-engine"
    with proxied_operator(world, operator_class, tmp_path, "drifting", "--relist-seconds=3600") as (proxy, _):
        world.apply(manifest(name, "drifting"))
        until(lambda: world.get("llmd", name, "drifting")["status"]["observedGeneration"] == 1)
        # Each watch begins with a list.
        until(
            lambda: sum(call.verb == "watch" and call.status == 200 for call in proxy.calls) >= len(WATCHED)
        )
        since = len(proxy.calls)

        world.kubectl("scale", "deployment", child, "-n", "drifting", "--replicas=5")
        until(lambda: world.get("deployment", child, "drifting")["spec"]["replicas"] == 1)
        world.kubectl("delete", "service", child, "-n", "drifting")
        until(lambda: world.get("service", child, "drifting"))

        calls = [call for call in proxy.calls[since:] if "leases" not in call.path]
    assert not [call for call in calls if call.verb == "list"]
    repairs = [call.path for call in calls if call.verb in WRITES and not call.path.endswith("/status")]
    assert [path.rpartition("drifting/")[2] for path in repairs] == [
        f"deployments/{child}",
        f"services/{child}",
    ]


def test_lists_every_kind_with_the_first_answers_after_an_outage(
    world: Any, operator_class: Any, tmp_path: Path
) -> None:
    flags = ("--relist-seconds=3600", "--watch-silence-seconds=3600")
    with proxied_operator(world, operator_class, tmp_path, "listed", *flags) as (proxy, operator):
        until(lambda: sum(call.verb == "watch" for call in proxy.calls) >= len(WATCHED))
        proxy.stall()
        until(lambda: operator.logged("nothing is reconciled before it does"))
        since = len(proxy.calls)

        proxy.flow()

        everything = {resource.path("listed") for resource in WATCHED}
        until(lambda: {call.path for call in proxy.calls[since:] if call.verb == "list"} == everything)


@pytest.mark.thorough
def test_goes_on_after_a_minute_of_silence_with_the_default_settings(
    world: Any, operator_class: Any, manifest: Any, name: str, tmp_path: Path
) -> None:
    with proxied_operator(world, operator_class, tmp_path, "silent") as (proxy, operator):
        world.apply(manifest(name, "silent"))
        until(lambda: world.get("llmd", name, "silent")["status"]["observedGeneration"] == 1)
        service = world.get("service", f"{name}-engine", "silent")
        silent_from = len(proxy.calls)

        proxy.stall()
        world.kubectl("scale", f"llmd/{name}", "-n", "silent", "--replicas=3")
        # Each attempt to renew the Lease lasts 3 s, and the next one begins 1 s later.
        until(lambda: sum("leases" in call.path for call in proxy.calls[silent_from:]) >= 60 / 4)
        assert "200" in healthz(operator)
        answered_from = len(proxy.calls)
        proxy.flow()
        until(lambda: world.get("deployment", f"{name}-engine", "silent")["spec"]["replicas"] == 3)

        attempts = [call for call in proxy.calls[answered_from:] if "leases" in call.path]
        assert world.get("service", f"{name}-engine", "silent") == service
        assert operator.log.read_text().count("the API server answers again") == 1
        # The first attempt after the silence succeeds, and the work goes on with it.
        assert attempts[0].status == 200


def healthz(operator: Any) -> str:
    """Return the status line of the operator's health."""
    with urllib.request.urlopen(f"http://127.0.0.1:{operator.metrics_port}/healthz") as answer:
        return f"{answer.status}"


def test_opens_a_watch_of_a_kind_that_discovery_missed(
    world: Any, operator_class: Any, tmp_path: Path
) -> None:
    misses = itertools.count()
    is_open = 'fairlead_operator_watch_age_seconds{namespace="undiscovered",resource="llmdeployments"}'

    async def incomplete(request: web.Request) -> web.StreamResponse | None:
        if request.path != "/apis/fairlead.dev/v1alpha1" or next(misses):
            return None
        return web.json_response(
            {"kind": "APIResourceList", "groupVersion": "fairlead.dev/v1alpha1", "resources": []}
        )

    with proxied_operator(
        world, operator_class, tmp_path, "undiscovered", "--relist-seconds=3600", fault=incomplete
    ) as (_, operator):
        until(lambda: operator.logged("llmdeployments are not watched"))
        until(lambda: f"{is_open} 0.0" in operator.metrics())
