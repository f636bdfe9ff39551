"""Deployments from a cluster: against a real API server, and against a small one that misbehaves on demand."""

import asyncio
import base64
import json
import ssl
import subprocess
from pathlib import Path
from uuid import uuid4

import pytest
import yaml
from aiohttp import web

from engine_server.contract.labels import LLMDEPLOYMENT_LABEL as LABEL
from engine_server.router import kubernetes_watch
from engine_server.router.endpoints import Directory
from engine_server.router.kubernetes_access import (
    Access,
    AccessError,
    find_access,
    from_account,
    from_kubeconfig,
)
from engine_server.router.kubernetes_source import KubernetesSource

CRD = Path(__file__).parents[2] / "charts" / "fairlead" / "files" / "llmdeployment-crd.yaml"


class Followed:
    """A directory that a source keeps true."""

    def __init__(self, source: KubernetesSource) -> None:
        self.source = source
        self.directory = Directory("least_load", on_unproven=lambda _: None, on_gone=lambda _: None)
        self.task = asyncio.create_task(source.run(self.directory))

    def live(self, model: str) -> list[str] | None:
        route = self.directory.resolve(model)
        return None if route is None else [str(endpoint.address) for endpoint in route.live]


@pytest.fixture
async def follow(eventually):
    followed = []

    async def start(access: Access, *namespaces: str, synced: bool = True) -> Followed:
        one = Followed(KubernetesSource(access, namespaces))
        followed.append(one)
        if synced:
            await eventually(lambda: one.source.synced)
        return one

    yield start
    for one in followed:
        one.task.cancel()
    await asyncio.gather(*(one.task for one in followed), return_exceptions=True)


def llmd(name: str, *served: str, policy: str | None = None, **metadata) -> dict:
    spec: dict = {"model": {"uri": "pvc://claim/path"}}
    if served:
        spec["model"]["servedNames"] = [*served]
    if policy:
        spec["routing"] = {"policy": policy}
    kind = {"apiVersion": "fairlead.dev/v1alpha1", "kind": "LLMDeployment"}
    return {**kind, "metadata": {"name": name, **metadata}, "spec": spec}


def endpoint(ip: str, pod: str | None = None, **conditions: bool) -> dict:
    target = {"targetRef": {"kind": "Pod", "name": pod}} if pod else {}
    return {"addresses": [ip], "conditions": conditions, **target}


def slice_of(owner: str, name: str, *endpoints: dict, family: str = "IPv4", **metadata) -> dict:
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": name, "labels": {LABEL: owner}, **metadata},
        "addressType": family,
        "ports": [{"name": "metrics", "port": 9}, {"name": "http", "port": 8000}],
        "endpoints": [*endpoints],
    }


# A real API server


@pytest.fixture
def cluster(api_server):
    """The CRD, and two namespaces of the test's own; (apply, delete, their names)."""

    def kubectl(*arguments: str, stdin=None) -> None:
        done = api_server.kubectl(*arguments, stdin=stdin)
        assert done.returncode == 0, done.stderr

    kubectl("apply", "-f", str(CRD))
    kubectl("wait", "--for=condition=Established", "crd/llmdeployments.fairlead.dev")
    namespaces = [f"{colour}-{uuid4().hex[:8]}" for colour in ("red", "blue")]
    for namespace in namespaces:
        kubectl("create", "namespace", namespace)

    def apply(namespace: str, *objects: dict) -> None:
        kubectl(
            "apply",
            "-n",
            namespace,
            "-f",
            "-",
            stdin={"apiVersion": "v1", "kind": "List", "items": [*objects]},
        )

    def delete(namespace: str, kind: str, name: str) -> None:
        kubectl("delete", kind, name, "-n", namespace)

    yield apply, delete, namespaces
    for namespace in namespaces:
        kubectl("delete", "llmdeployments,endpointslices", "--all", "-n", namespace)


async def test_a_cluster_is_followed(api_server, cluster, follow, eventually):
    apply, delete, (red, blue) = cluster
    apply(red, llmd("a", "first", policy="round_robin"))
    apply(red, slice_of("a", "a-1", endpoint("10.0.0.1", ready=True, serving=True, terminating=False)))
    one = await follow(from_kubeconfig(api_server.kubeconfig))
    narrow = await follow(from_kubeconfig(api_server.kubeconfig), blue)
    assert one.live("first") == one.live(f"{red}/a") == ["http://10.0.0.1:8000"]
    assert type(one.directory.resolve("first").policy).__name__ == "RoundRobin"
    assert narrow.live("first") is None

    apply(red, slice_of("a", "a-2", endpoint("10.0.0.2")))  # a second slice of the same deployment
    await eventually(lambda: one.live("first") == ["http://10.0.0.1:8000", "http://10.0.0.2:8000"])
    apply(red, slice_of("a", "a-1", endpoint("10.0.0.1", ready=False, serving=True, terminating=True)))
    await eventually(lambda: one.live("first") == ["http://10.0.0.2:8000"])

    delete(red, "endpointslice", "a-2")
    await eventually(lambda: one.live("first") == [])
    apply(red, llmd("a", "second"))
    await eventually(lambda: one.live("first") is None and one.live("second") == [])
    apply(blue, llmd("b", "first"), slice_of("b", "b-1", endpoint("10.0.1.1")))
    await eventually(lambda: one.live("first") == narrow.live("first") == ["http://10.0.1.1:8000"])
    delete(red, "llmdeployment", "a")
    await eventually(lambda: one.live("second") is None)


async def test_several_namespaces(api_server, cluster, follow):
    apply, _, namespaces = cluster
    for namespace in namespaces:
        apply(namespace, llmd("a"))
    one = await follow(from_kubeconfig(api_server.kubeconfig), *namespaces)
    assert [one.live(f"{namespace}/a") for namespace in namespaces] == [[], []]


# One that misbehaves


class FakeApi:
    """Speaks list and watch over HTTP; what a watch does next is put into its queue."""

    def __init__(self) -> None:
        self.items: dict[str, list[dict]] = {"llmdeployments": [], "endpointslices": []}
        self.watches: dict[str, asyncio.Queue] = {kind: asyncio.Queue() for kind in self.items}
        self.asked: list[dict[str, str]] = []
        self.lists = 0
        self.failures = 0
        self.page = 1000
        self.url = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        kind = request.path.rsplit("/", 1)[1]
        self.asked.append({"kind": kind, **request.query})
        if self.failures:
            self.failures -= 1
            return web.json_response({"kind": "Status", "message": "no"}, status=500)
        if "watch" not in request.query:
            self.lists += 1
            start = int(request.query.get("continue") or 0)
            more = start + self.page < len(self.items[kind])
            metadata = {"resourceVersion": "7", **({"continue": str(start + self.page)} if more else {})}
            return web.json_response(
                {"metadata": metadata, "items": self.items[kind][start : start + self.page]}
            )
        response = web.StreamResponse()
        await response.prepare(request)
        while (data := await self.watches[kind].get()) is not None:
            await response.write(data)
        return response


def event(type_: str, thing: dict) -> bytes:
    return json.dumps({"type": type_, "object": thing}).encode() + b"\n"


@pytest.fixture
async def api(monkeypatch):
    monkeypatch.setattr(kubernetes_watch, "FIRST_PAUSE", 0.02)
    fake = FakeApi()
    application = web.Application()
    application.router.add_get("/{path:.*}", fake.handle)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    fake.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield fake
    for queue in fake.watches.values():
        queue.put_nowait(None)
    await runner.cleanup()


def seen(name: str, namespace: str = "x", version: str = "7") -> dict:
    return {"name": name, "namespace": namespace, "resourceVersion": version}


async def test_nothing_is_ready_before_the_first_list(api, follow, eventually):
    api.failures = 3
    one = await follow(Access(api.url), synced=False)
    assert not one.source.synced
    await eventually(lambda: one.source.synced)
    assert api.failures == 0


async def test_long_lists_come_in_pages(api, follow):
    api.page = 2
    api.items["llmdeployments"] = [llmd(**seen(f"m{n}")) for n in range(5)]
    one = await follow(Access(api.url))
    assert list(one.directory.models()) == [f"m{n}" for n in range(5)]
    assert api.lists == 4


async def test_a_watch_goes_on_from_the_last_version_or_bookmark(api, follow, eventually):
    await follow(Access(api.url))
    watch = api.watches["llmdeployments"]
    bookmark = {"kind": "LLMDeployment", "metadata": {"resourceVersion": "99"}}
    for data in (event("ADDED", llmd(**seen("m", version="8"))), event("BOOKMARK", bookmark), None):
        watch.put_nowait(data)
    await eventually(lambda: any(q.get("resourceVersion") == "99" for q in api.asked))
    assert api.lists == 2
    first = next(q for q in api.asked if "watch" in q)
    assert first["resourceVersion"] == "7" and first["allowWatchBookmarks"] == "true"
    assert {q.get("labelSelector") for q in api.asked if q["kind"] == "endpointslices"} == {LABEL}


@pytest.mark.parametrize("how", ["gone", "garbage", "cut"])
async def test_what_a_watch_missed_is_found_by_a_list(api, follow, eventually, how):
    """Among it a deletion of which no event ever came."""
    api.items["llmdeployments"] = [llmd(**seen("old"))]
    api.items["endpointslices"] = [slice_of("old", "s", endpoint("10.0.0.1"), namespace="x")]
    one = await follow(Access(api.url))
    assert one.live("old") == ["http://10.0.0.1:8000"]
    api.items["llmdeployments"] = [llmd(**seen("new"))]
    last = event("ERROR", {"kind": "Status", "code": 410, "message": "too old resource version"})
    if how == "cut":
        last = event("ADDED", llmd(**seen("half")))[:30]
    api.watches["llmdeployments"].put_nowait(b"{]\n" if how == "garbage" else last)
    api.watches["llmdeployments"].put_nowait(None)
    if how == "cut":  # half a line at the end of a watch is no event
        api.watches["llmdeployments"].put_nowait(event("ERROR", {"message": "now list"}))
    await eventually(lambda: one.live("old") is None and one.live("new") == [])
    assert one.live("half") is None


async def test_a_list_is_made_again_now_and_then(api, follow, eventually, monkeypatch):
    monkeypatch.setattr(kubernetes_watch, "RELIST_SECONDS", 0.0)
    one = await follow(Access(api.url))
    api.items["llmdeployments"] = [llmd(**seen("m"))]
    await eventually(lambda: one.live("m") == [])


async def test_an_event_larger_than_any_buffer(api, follow, eventually):
    one = await follow(Access(api.url))
    pods = [endpoint(f"10.{n // 250}.0.{n % 250 + 1}", f"pod-{n}-{'x' * 200}") for n in range(3000)]
    api.watches["llmdeployments"].put_nowait(event("ADDED", llmd(**seen("m"))))
    api.watches["endpointslices"].put_nowait(event("ADDED", slice_of("m", "s", *pods, namespace="x")))
    await eventually(lambda: len(one.live("m") or ()) == 3000)


async def test_which_endpoints_take_requests(api, follow):
    api.items["llmdeployments"] = [llmd(**seen("m"))]
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
    one = await follow(Access(api.url))
    assert one.live("m") == [f"http://{h}:8000" for h in ("10.0.0.1", "10.0.0.3", "10.0.0.5", "[fd00::2]")]


# The way to it


def kubeconfig(path: Path, cluster: dict, user: dict, **changed: object) -> Path:
    config = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "clusters": [{"name": "k", "cluster": cluster}],
        "users": [{"name": "u", "user": user}],
        **changed,
    }
    path.write_text(yaml.safe_dump(config))
    return path


@pytest.mark.parametrize("inline", [True, False])
async def test_client_certificates(tmp_path, inline):
    """A TLS server that lets nobody in without one; the kubeconfig has it as kind writes it, or in files."""

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=tmp_path, check=True, capture_output=True)

    openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "own.key", "-out", "own.crt", "-days", "2",
            "-subj", "/CN=both", "-addext", "subjectAltName=IP:127.0.0.1")  # fmt: skip
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=tmp_path / "own.crt")
    tls.load_cert_chain(tmp_path / "own.crt", tmp_path / "own.key")
    tls.verify_mode = ssl.CERT_REQUIRED
    server = await asyncio.start_server(lambda r, w: w.close(), "127.0.0.1", 0, ssl=tls)
    port = server.sockets[0].getsockname()[1]

    def given(name: str, file: str) -> dict[str, str]:
        data = base64.b64encode((tmp_path / file).read_bytes()).decode()
        return {f"{name}-data": data} if inline else {name: file}

    cluster = {"server": f"https://127.0.0.1:{port}/", **given("certificate-authority", "own.crt")}
    user = {**given("client-certificate", "own.crt"), **given("client-key", "own.key")}
    access = from_kubeconfig(kubeconfig(tmp_path / "config", cluster, user))
    assert access.server == f"https://127.0.0.1:{port}" and access.headers() == {}
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=access.tls)
    assert await reader.read() == b""
    writer.close()
    server.close()


def test_tokens(tmp_path):
    cluster = {"server": "http://h"}
    assert from_kubeconfig(kubeconfig(tmp_path / "a", cluster, {"token": "t"})).headers() == {
        "Authorization": "Bearer t"
    }
    (tmp_path / "token").write_text("first\n")
    access = from_kubeconfig(kubeconfig(tmp_path / "b", cluster, {"tokenFile": "token"}))
    assert access.headers() == {"Authorization": "Bearer first"}
    (tmp_path / "token").write_text("second")
    assert access.headers() == {"Authorization": "Bearer second"}


def test_the_pods_own_account(api_server, tmp_path, monkeypatch):
    authority = yaml.safe_load(api_server.kubeconfig.read_text())["clusters"][0]["cluster"][
        "certificate-authority"
    ]
    (tmp_path / "ca.crt").write_bytes(Path(authority).read_bytes())
    (tmp_path / "token").write_text("t")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.1.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "6443")
    access = from_account(tmp_path)
    assert access.server == "https://10.1.0.1:6443" and access.headers() == {"Authorization": "Bearer t"}


@pytest.mark.parametrize(
    ("user", "changed", "words"),
    [
        ({"exec": {"command": "aws"}}, {}, "login plugin"),
        ({}, {"current-context": "other"}, "no context named 'other'"),
        ({}, {"clusters": []}, "no cluster named 'k'"),
        ({"client-certificate": "missing", "client-key": "missing"}, {}, "missing"),
    ],
)
def test_a_kubeconfig_that_cannot_be_used(tmp_path, user, changed, words):
    with pytest.raises(AccessError, match=words):
        find_access(kubeconfig(tmp_path / "config", {"server": "https://h"}, user, **changed))
