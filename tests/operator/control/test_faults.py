"""The operator behind a proxy that fails as API servers and networks do."""

import asyncio
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from fault_proxy import Call, Fault, FaultProxy, expired_watch, is_watch, status
from llm_operator import informer
from llm_operator.control import api_errors, cluster, lease
from llm_operator.kinds import WATCHED
from operators import Operator
from waiting import until

# A watch that is silent for so long is opened again.
WATCH_SILENCE = 3
# Longer than the operator waits without being asked to.
RETRY_AFTER = 1
WRITES = ("create", "update", "patch", "delete")
SILENCE = "nothing is reconciled before it does"
ANSWER = "the API server answers again"


class Site:
    """An operator of the module's namespace, and the proxy between it and the API server."""

    def __init__(self, world: Any, proxy: FaultProxy, operator: Operator, token_file: Path) -> None:
        self.world = world
        self.proxy = proxy
        self.operator = operator
        self.token_file = token_file

    def versions(self, name: str) -> list[str]:
        """Return the resource versions of the children but the Deployment."""
        selector = f"fairlead.dev/llmdeployment={name}"
        children = [
            item
            for kind in ("service", "serviceaccount")
            for item in self.world.list(kind, labelSelector=selector)
        ]
        return [item["metadata"]["resourceVersion"] for item in children]

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
        until(lambda: self.world.observed_generation(manifest["metadata"]["name"]) == 1)

    def survives(self, name: str, provoke: Callable[[], object], recover: Callable[[], object]) -> None:
        """Edit an LLMDeployment during a fault; afterwards the edit is carried out, and nothing else is written."""
        before = self.versions(name)
        provoke()
        since = len(self.proxy.calls)
        self.world.scale("llmd", name, 3)
        recover()
        until(lambda: self.replicas(name) == 3)
        assert len(before) == 2 and self.versions(name) == before
        calls = self.calls_about(name, since)
        written = {
            call.path.partition(f"/{self.world.namespace}/")[2] for call in calls if call.verb in WRITES
        }
        assert written <= {f"deployments/{name}-engine", f"llmdeployments/{name}/status"}
        assert self.operator.is_running, self.operator.log


@pytest.fixture(scope="module")
def site(world: Any, run_operator: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    token_file = tmp_path_factory.mktemp("proxied") / "token"
    home = world.namespace
    proxy = FaultProxy(world.api_server)
    with proxy.running():
        kubeconfig = proxy.kubeconfig(world.service_account(), token_file)
        flags = ("--relist-seconds=1", f"--watch-silence-seconds={WATCH_SILENCE}")
        scope = (f"--namespace={home}", f"--lease-namespace={home}")
        with run_operator(kubeconfig, *scope, *flags) as operator:
            # A fault while the first watches are being opened would make the operator start them again.
            until(lambda: all_are_watched(proxy))
            yield Site(world, proxy, operator, token_file)


def all_are_watched(proxy: FaultProxy) -> bool:
    return sum(call.verb == "watch" and call.status == 200 for call in proxy.calls) >= len(WATCHED)


def silences(operator: Operator) -> int:
    """Wait until the API server answers an operator; return how often the operator has missed its answers so far."""
    until(lambda: operator.log.count(SILENCE) == operator.log.count(ANSWER))
    return operator.log.count(SILENCE)


@pytest.fixture
def short_outages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the operator call an API server in trouble again sooner, if that does not ask for more."""
    monkeypatch.setattr(api_errors, "OUTAGE_SECONDS", 0.3)


@pytest.fixture
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the operator notice within a second or two that its Lease cannot be renewed."""
    for name, seconds in {"CALL": 0.5, "RETRY": 0.2, "RENEW": 0.5, "GIVE_UP": 1}.items():
        monkeypatch.setattr(lease, f"{name}_SECONDS", seconds)


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
    return await expired_watch(request) if is_watch(request) else None


@pytest.mark.usefixtures("short_outages")
@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(conflict, id="conflict", marks=pytest.mark.more),
        pytest.param(answering(500), id="internal-error"),
        pytest.param(gateway_timeout, id="gateway-timeout", marks=pytest.mark.more),
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


@pytest.mark.usefixtures("short_outages")
def test_waits_as_long_as_retry_after_asks_for_whatever_happens_meanwhile(
    site: Site, manifest: Any, name: str
) -> None:
    site.settle(manifest(name))
    since = len(site.proxy.calls)

    def refused() -> list[Call]:
        return [call for call in site.calls_about(name, since) if call.status == 429]

    def accepted() -> list[Call]:
        return [call for call in site.calls_about(name, since) if call.status not in (None, 429)]

    def recover() -> None:
        until(refused)
        # An event about the object, which is no reason to call earlier.
        site.world.scale("llmd", name, 2)
        site.world.scale("llmd", name, 3)
        until(lambda: len(refused()) >= 2)
        site.proxy.fault = None

    fault = answering(429, **{"Retry-After": str(RETRY_AFTER)})
    site.survives(name, lambda: setattr(site.proxy, "fault", fault), recover)

    for call, following in pairwise(site.calls_about(name, since)):
        if call.status == 429:
            assert call.answered_at is not None
            assert following.arrived_at - call.answered_at >= RETRY_AFTER
    # The API server shows the effect of a call before the proxy passes its answer on.
    after, *_ = until(accepted)
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
    until(lambda: site.world.observed_generation(name) == 2)
    site.proxy.fault = None

    assert site.world.get("deployment", f"{name}-engine")["metadata"]["generation"] == generation + 1


@pytest.mark.more
def test_repeats_a_write_that_is_never_answered(
    site: Site, manifest: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "REQUEST_SECONDS", 1)
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


@pytest.mark.more
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


@pytest.mark.usefixtures("short_patience")
def test_carries_out_an_edit_after_silence_without_a_restart(site: Site, manifest: Any, name: str) -> None:
    site.settle(manifest(name))
    before = silences(site.operator)

    def recover() -> None:
        until(lambda: site.operator.logged(SILENCE, before + 1))
        site.proxy.flow()

    site.survives(name, site.proxy.stall, recover)


def test_takes_a_new_token_when_the_old_one_has_expired(site: Site, manifest: Any, name: str) -> None:
    site.settle(manifest(name))
    old = site.token_file.read_text()

    async def expired(request: web.Request) -> web.StreamResponse | None:
        return status(401) if old in request.headers.get("Authorization", "") else None

    def provoke() -> None:
        site.token_file.write_text(site.world.token("operator"))
        site.proxy.fault = expired
        site.proxy.cut()

    site.survives(name, provoke, lambda: None)
    site.proxy.fault = None


@contextmanager
def proxied_operator(
    world: Any, run_operator: Any, folder: Path, name: str, *flags: str, fault: Fault | None = None
) -> Iterator[tuple[FaultProxy, Operator, str]]:
    """Run an operator of a new namespace behind a proxy of its own."""
    namespace = world.create_namespace(f"{world.namespace}-{name}")
    proxy = FaultProxy(world.api_server)
    proxy.fault = fault
    with proxy.running():
        account = proxy.kubeconfig(world.service_account(namespace), folder / "token")
        scope = (f"--namespace={namespace}", f"--lease-namespace={namespace}")
        with run_operator(account, *scope, *flags) as operator:
            yield proxy, operator, namespace


@pytest.mark.more
def test_repairs_drift_that_a_watch_reports_at_once_and_without_a_list(
    world: Any, run_operator: Any, manifest: Any, name: str, tmp_path: Path
) -> None:
    child = f"{name}-engine"
    with proxied_operator(world, run_operator, tmp_path, "drifting", "--relist-seconds=3600") as (
        proxy,
        _,
        home,
    ):
        world.apply(manifest(name, home))
        until(lambda: world.observed_generation(name, home) == 1)
        # Each watch begins with a list.
        until(lambda: all_are_watched(proxy))
        since = len(proxy.calls)

        world.scale("deployment", child, 5, home)
        until(lambda: world.get("deployment", child, home)["spec"]["replicas"] == 1)
        world.delete("service", child, home)
        until(lambda: world.get("service", child, home))

        calls = [call for call in proxy.calls[since:] if "leases" not in call.path]
    assert not [call for call in calls if call.verb == "list"]
    repairs = [call.path for call in calls if call.verb in WRITES and not call.path.endswith("/status")]
    assert [path.rpartition(f"{home}/")[2] for path in repairs] == [
        f"deployments/{child}",
        f"services/{child}",
    ]


@pytest.mark.more
@pytest.mark.usefixtures("short_patience")
def test_lists_every_kind_with_the_first_answers_after_an_outage(
    world: Any, run_operator: Any, tmp_path: Path
) -> None:
    flags = ("--relist-seconds=3600", "--watch-silence-seconds=3600")
    with proxied_operator(world, run_operator, tmp_path, "listed", *flags) as (proxy, operator, home):
        until(lambda: sum(call.verb == "watch" for call in proxy.calls) >= len(WATCHED))
        before = silences(operator)
        proxy.stall()
        until(lambda: operator.logged(SILENCE, before + 1))
        since = len(proxy.calls)

        proxy.flow()

        everything = {resource.path(home) for resource in WATCHED}
        until(lambda: {call.path for call in proxy.calls[since:] if call.verb == "list"} == everything)


@pytest.mark.thorough
def test_goes_on_after_a_minute_of_silence_with_the_default_settings(
    world: Any, run_operator: Any, manifest: Any, name: str, tmp_path: Path
) -> None:
    with proxied_operator(world, run_operator, tmp_path, "silent") as (proxy, operator, home):
        world.apply(manifest(name, home))
        until(lambda: world.observed_generation(name, home) == 1)
        service = world.get("service", f"{name}-engine", home)
        silent_from = len(proxy.calls)

        proxy.stall()
        world.scale("llmd", name, 3, home)
        # Each attempt to renew the Lease lasts 3 s, and the next one begins 1 s later.
        until(lambda: sum("leases" in call.path for call in proxy.calls[silent_from:]) >= 60 / 4)
        assert operator.page("/healthz") == "ok\n"
        answered_from = len(proxy.calls)
        proxy.flow()
        until(lambda: world.get("deployment", f"{name}-engine", home)["spec"]["replicas"] == 3)

        attempts = [call for call in proxy.calls[answered_from:] if "leases" in call.path]
        assert world.get("service", f"{name}-engine", home) == service
        assert operator.log.count(ANSWER) == 1
        # The first attempt after the silence succeeds, and the work goes on with it.
        assert attempts[0].status == 200


@pytest.mark.more
def test_opens_a_watch_of_a_kind_that_discovery_missed(
    world: Any, run_operator: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(informer, "CONFIRM_SECONDS", 1)
    monkeypatch.setattr(informer, "RETRY_SECONDS", 0.1)
    misses = itertools.count()

    async def incomplete(request: web.Request) -> web.StreamResponse | None:
        if request.path != "/apis/fairlead.dev/v1alpha1" or next(misses):
            return None
        return web.json_response(
            {"kind": "APIResourceList", "groupVersion": "fairlead.dev/v1alpha1", "resources": []}
        )

    with proxied_operator(
        world, run_operator, tmp_path, "undiscovered", "--relist-seconds=3600", fault=incomplete
    ) as (_, operator, home):
        is_open = f'fairlead_operator_watch_age_seconds{{namespace="{home}",resource="llmdeployments"}} 0.0'
        until(lambda: operator.logged("llmdeployments are not watched"))
        until(lambda: is_open in operator.metrics())
