"""Model caches against a real API server; the tests act as the controllers of Jobs, claims and Deployments."""

import os
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from aiohttp import ClientTimeout
from llm_operator.control import pod_questions
from llm_operator.control.reconcile import WORKERS
from llm_operator.plan.children import cache
from waiting import PATIENCE, until

from engine_server.contract.cluster.model_folder import no_model

pytestmark = pytest.mark.usefixtures("operator")
# Pods report on one port, so each process that runs the tests has loopback addresses of its own.
NETWORK = f"127.{os.getpid() >> 8 & 255}.{os.getpid() & 255}"
ADDRESS, SILENT_ADDRESS = f"{NETWORK}.91", f"{NETWORK}.92"
# Shared children have the label of an LLMDeployment without a value.
SHARED = "fairlead.dev/llmdeployment="
DONE = {
    "startTime": "2026-01-01T00:00:00Z",
    "completionTime": "2026-01-01T00:01:00Z",
    "succeeded": 1,
    "uncountedTerminatedPods": {},
    "conditions": [
        {"type": kind, "status": "True", "lastTransitionTime": "2026-01-01T00:01:00Z"}
        for kind in ("SuccessCriteriaMet", "Complete")
    ],
}


@pytest.fixture(scope="module", autouse=True)
def _looks_often_at_downloads() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(cache, "POLL_SECONDS", 0.2)
        yield


@pytest.fixture(autouse=True)
def _downloads_end(world: Any) -> Iterator[None]:
    """Leave no LLMDeployment whose download the operator goes on looking at."""
    yield
    world.delete_all("llmd", world.namespace)


def cached(manifest: Any, name: str, model: str, **given: Any) -> dict[str, Any]:
    """Return an LLMDeployment with a model that no other test has."""
    return dict(manifest(name, model={"uri": f"hf://tests/{model}", "cache": given or {"size": "1Gi"}}))


def job_of(world: Any, name: str) -> dict[str, Any] | None:
    """Return the Job that has an LLMDeployment among its owners."""
    return next(iter(shared(world, "job", name)), None)


def shared(world: Any, kind: str, owner: str) -> list[dict[str, Any]]:
    return [item for item in world.list(kind, labelSelector=SHARED) if owner in owners(item)]


def owners(item: dict[str, Any]) -> set[str]:
    return {reference["name"] for reference in item["metadata"].get("ownerReferences", ())}


def deployments(world: Any) -> set[str]:
    return {found.removesuffix("-engine") for found in world.names("deployment")}


def count_replicas(world: Any, name: str) -> None:
    """Report that no replicas of an earlier template are left, as the Deployment's controller does."""
    until(lambda: name in deployments(world))
    world.set_status("deployment", f"{name}-engine", {"observedGeneration": 1})


def complete(world: Any, name: str) -> str:
    """Finish the download of an LLMDeployment as the Job's controller does; return the name of its cache."""
    job = until(lambda: job_of(world, name))
    world.set_status("job", job["metadata"]["name"], DONE)
    return str(job["metadata"]["name"])


def test_the_deployment_is_created_after_the_download(world: Any, manifest: Any, name: str) -> None:
    world.apply(cached(manifest, name, name))
    found = until(lambda: world.condition(name, "ModelCached"))
    assert (found["status"], found["reason"]) == ("False", "FetchingModel")
    assert world.reason(name, "Ready") == "FetchingModel"
    assert name not in deployments(world)

    claim_name = complete(world, name)

    until(lambda: name in deployments(world))
    found = until(lambda: cache_condition(world, name, "Cached"))
    assert found["status"] == "True"
    assert found["message"] == f"the model is in the folder {claim_name} of the claim {claim_name}"
    until(lambda: job_of(world, name) is None)
    assert [claim["metadata"]["name"] for claim in shared(world, "pvc", name)] == [claim_name]


def test_two_deployments_share_one_claim_and_one_download(world: Any, manifest: Any, name: str) -> None:
    one, other = f"{name[:40]}-1", f"{name[:40]}-2"
    world.apply(cached(manifest, one, name), cached(manifest, other, name))
    for kind in ("job", "pvc"):
        until(lambda kind=kind: [owners(item) for item in shared(world, kind, one)] == [{one, other}])
        assert len(shared(world, kind, other)) == 1

    claim_name = complete(world, one)

    until(lambda: {one, other} <= deployments(world))
    until(lambda: not shared(world, "job", one) + shared(world, "job", other))
    (claim,) = shared(world, "pvc", one)
    assert owners(claim) == {one, other}
    assert not any(reference.get("controller") for reference in claim["metadata"]["ownerReferences"])
    assert claim["metadata"]["name"] == claim_name


@pytest.mark.more
def test_a_later_deployment_of_a_complete_cache_runs_no_job(world: Any, manifest: Any, name: str) -> None:
    first, later = f"{name[:40]}-1", f"{name[:40]}-2"
    world.apply(cached(manifest, first, name))
    complete(world, first)
    until(lambda: first in deployments(world))
    until(lambda: job_of(world, first) is None)

    world.apply(cached(manifest, later, name))

    # No test and no controller would finish a Job.
    until(lambda: later in deployments(world))
    assert job_of(world, later) is None
    until(lambda: world.reason(later, "ModelCached") == "Cached")
    (claim,) = shared(world, "pvc", later)
    assert owners(claim) == {first, later}


@pytest.mark.more
def test_a_deployment_that_shares_a_running_download_can_leave_it(
    world: Any, manifest: Any, name: str
) -> None:
    first, later = f"{name[:40]}-1", f"{name[:40]}-2"
    world.apply(cached(manifest, first, name))
    until(lambda: job_of(world, first))
    world.apply(cached(manifest, later, name))
    until(lambda: [owners(item) for item in shared(world, "job", later)] == [{first, later}])

    world.apply(manifest(later, model={"uri": f"hf://tests/{name}"}))
    count_replicas(world, later)

    until(lambda: [owners(item) for item in shared(world, "job", first)] == [{first}])


def test_an_edit_removes_only_its_own_reference(world: Any, manifest: Any, name: str) -> None:
    one, other = f"{name[:40]}-1", f"{name[:40]}-2"
    world.apply(cached(manifest, one, name), cached(manifest, other, name))
    until(lambda: [owners(item) for item in shared(world, "pvc", one)] == [{one, other}])

    world.apply(manifest(one, model={"uri": f"hf://tests/{name}"}))
    count_replicas(world, one)

    until(lambda: [owners(item) for item in shared(world, "pvc", other)] == [{other}])
    (claim,) = shared(world, "pvc", other)
    assert claim["spec"]["resources"]["requests"]["storage"] == "1Gi"
    until(lambda: [owners(item) for item in shared(world, "job", other)] == [{other}])

    world.apply(manifest(other, model={"uri": f"hf://tests/{name}"}))
    count_replicas(world, other)

    until(lambda: not shared(world, "job", other))
    until(lambda: all("deletionTimestamp" in item["metadata"] for item in shared(world, "pvc", other)))


def create_claim(world: Any, name: str) -> dict[str, Any]:
    """Create a claim as a user does."""
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name},
        "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    world.apply(claim)
    return dict(world.get("pvc", name))


def test_the_users_own_claim_is_never_changed(world: Any, manifest: Any, name: str) -> None:
    create_claim(world, "mine")
    before = world.get("pvc", "mine")
    world.apply(cached(manifest, name, name, claim="mine"))
    complete(world, name)
    until(lambda: name in deployments(world))

    world.apply(manifest(name))

    until(lambda: not world.condition(name, "ModelCached"))
    assert world.get("pvc", "mine") == before


def test_the_users_claim_is_filled_again_when_an_engine_finds_no_model(
    world: Any, manifest: Any, name: str
) -> None:
    create_claim(world, "emptied")
    world.apply(cached(manifest, name, name, claim="emptied"))
    complete(world, name)
    until(lambda: name in deployments(world))
    until(lambda: job_of(world, name) is None)
    before = world.get("deployment", f"{name}-engine")
    owner_references = world.pod_owners(name)
    record = {
        key: value
        for key, value in before["metadata"]["annotations"].items()
        if key == "fairlead.dev/pod-template"
    }
    world.annotate("replicaset", owner_references[0]["name"], record)
    labels = before["spec"]["template"]["metadata"]["labels"]
    spec = {"containers": [{"name": "engine", "image": "x"}], "serviceAccountName": "default"}
    metadata = {"name": name, "labels": labels, "ownerReferences": owner_references}
    world.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    line = f"fairlead engine: {no_model('/models/model', 'the folder is empty')}"
    ended = {"exitCode": 1, "message": line, "finishedAt": "2026-01-01T02:00:00Z"}
    state = {
        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
        "lastState": {"terminated": ended | {"startedAt": "2026-01-01T01:59:00Z"}},
    }
    container = {"name": "engine", "image": "x", "imageID": "", "ready": False, "restartCount": 1}

    world.set_status("pod", name, {"phase": "Running", "containerStatuses": [container | state]})

    until(lambda: cache_condition(world, name, "FetchingModel"))
    assert not world.degraded(name, "ModelMissing")
    job = until(lambda: job_of(world, name))
    world.set_status("job", job["metadata"]["name"], DONE | {"completionTime": "2026-01-01T03:00:00Z"})
    until(lambda: cache_condition(world, name, "Cached"))
    until(lambda: job_of(world, name) is None)
    after = world.get("deployment", f"{name}-engine")
    assert after["spec"]["template"] == before["spec"]["template"]
    assert after["metadata"]["annotations"]["fairlead.dev/cached-at"] == "2026-01-01T03:00:00Z"


def test_an_object_of_another_owner_with_the_name_of_the_claim_is_left_alone(
    world: Any, manifest: Any, name: str
) -> None:
    world.apply(cached(manifest, name, name))
    claim_name = until(lambda: job_of(world, name))["metadata"]["name"]
    world.apply(manifest(name))
    count_replicas(world, name)
    until(lambda: job_of(world, name) is None)
    world.patch("pvc", claim_name, {"metadata": {"finalizers": None}})
    until(lambda: not shared(world, "pvc", name))
    stranger = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": claim_name},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "2Gi"}}},
    }
    world.apply(stranger)

    world.apply(cached(manifest, name, name))

    found = until(lambda: world.degraded(name, "ChildExists"))
    assert claim_name in found["message"]
    assert world.get("pvc", claim_name)["spec"]["accessModes"] == ["ReadWriteOnce"]


class ProgressServer(ThreadingHTTPServer):
    """A pod's report of its progress."""

    def __init__(self) -> None:
        super().__init__((ADDRESS, 8000), Report)


class Report(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = b'{"done": 5100000000, "total": 15000000000}'
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def progress() -> Iterator[None]:
    with ProgressServer() as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield
        server.shutdown()


def create_fetch_pod(world: Any, name: str, status: dict[str, Any]) -> None:
    job = until(lambda: job_of(world, name))
    template = job["spec"]["template"]
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": template["metadata"]["labels"]},
        "spec": {**template["spec"], "serviceAccountName": "default"},
    }
    world.apply(pod)
    world.set_status("pod", name, status)


def cache_condition(world: Any, name: str, reason: str) -> dict[str, Any] | None:
    found = world.condition(name, "ModelCached")
    return dict(found) if found.get("reason") == reason else None


def test_the_condition_reports_percent_and_bytes(
    world: Any, manifest: Any, name: str, progress: None
) -> None:
    world.apply(cached(manifest, name, name))

    create_fetch_pod(world, name, {"phase": "Running", "podIP": ADDRESS, "podIPs": [{"ip": ADDRESS}]})

    expected = "34 %: 5.1 GB of 15.0 GB are downloaded"
    until(lambda: world.condition(name, "ModelCached").get("message") == expected)
    assert world.condition(name, "Ready")["message"] == expected


def test_fetch_pods_that_accept_and_never_answer_delay_no_llmdeployment(
    world: Any, manifest: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pod_questions, "TIMEOUT", ClientTimeout(total=2 * PATIENCE))
    names = [f"{name[:40]}-{number}" for number in range(2 * WORKERS)]
    with socket.create_server((SILENT_ADDRESS, 8000)):
        world.apply(*(cached(manifest, each, each) for each in names))
        for each in names:
            create_fetch_pod(
                world, each, {"phase": "Running", "podIP": SILENT_ADDRESS, "podIPs": [{"ip": SILENT_ADDRESS}]}
            )
        until(lambda: all(world.reason(each, "ModelCached") == "FetchingModel" for each in names))

        world.apply(manifest(name))

        until(lambda: name in deployments(world))


@pytest.mark.parametrize(
    ("line", "reason", "words"),
    [
        (
            "fairlead fetch: hf://a/b: cannot be written to /models/x: No space left on device",
            "VolumeFull",
            "raise model.cache.size",
        ),
        (
            "fairlead fetch: s3://b/x: AccessDenied: s3:GetObject is needed",
            "ModelFetchFailed",
            "s3:GetObject is needed",
        ),
    ],
)
def test_the_condition_has_the_reason_of_a_failed_download(
    world: Any, manifest: Any, request: pytest.FixtureRequest, line: str, reason: str, words: str
) -> None:
    name = f"failed-download-{reason.lower()}"
    world.apply(cached(manifest, name, name))
    ended = {"exitCode": 1, "message": line}
    waiting = {"waiting": {"reason": "CrashLoopBackOff"}}
    container = {"name": "model", "image": "x", "imageID": "", "ready": False, "restartCount": 1}

    create_fetch_pod(
        world,
        name,
        {
            "phase": "Running",
            "containerStatuses": [container | {"state": waiting, "lastState": {"terminated": ended}}],
        },
    )

    found = until(lambda: cache_condition(world, name, reason))
    assert words in found["message"]
    assert until(lambda: world.degraded(name, reason))
    assert world.reason(name, "Ready") == reason


def test_a_model_that_no_repetition_makes_usable_is_fetched_again_for_another_spec_alone(
    world: Any, manifest: Any, name: str
) -> None:
    world.apply(cached(manifest, name, name))
    line = "fairlead fetch: hf://a/b: model.gguf has the pre-tokenizer 'x', which is not known"
    ended = {"state": {"terminated": {"exitCode": 65, "message": line}}}
    container = {"name": "model", "image": "x", "imageID": "", "ready": False, "restartCount": 1}
    create_fetch_pod(world, name, {"phase": "Running", "containerStatuses": [container | ended]})

    found = until(lambda: cache_condition(world, name, "ModelUnusable"))
    assert found["message"] == f"the model cannot be used: {line}"
    job = until(lambda: (found := job_of(world, name)) and found["spec"].get("suspend") and found)
    world.delete("pod", name)  # as the Job's controller does
    other = f"{name[:40]}-2"
    world.apply(cached(manifest, other, name))
    found = until(lambda: cache_condition(world, other, "ModelUnusable"))
    assert found["message"] == f"the model cannot be used: {line}"
    assert world.reason(name, "Ready") == "ModelUnusable"
    assert job_of(world, name)["metadata"]["uid"] == job["metadata"]["uid"]

    changed = cached(manifest, name, name)
    changed["spec"]["engine"] = {"env": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}]}
    world.apply(changed)
    until(lambda: (found := job_of(world, name)) and not found["spec"].get("suspend"))
    until(lambda: cache_condition(world, name, "FetchingModel"))


@pytest.mark.parametrize(
    ("case", "message", "reason"),
    [
        ("absent-class", 'storageclass.storage.k8s.io "fast" not found', "StorageClassNotFound"),
        (
            "no-class",
            "no persistent volumes available for this claim and no storage class is set",
            "StorageClassNotFound",
        ),
        ("access-mode", "Volume capability MULTI_NODE_MULTI_WRITER not supported", "WrongAccessMode"),
    ],
)
def test_the_condition_has_the_reason_of_a_claim_without_a_volume(
    world: Any, manifest: Any, case: str, message: str, reason: str
) -> None:
    name = f"no-volume-{case}"
    world.apply(cached(manifest, name, name, size="1Gi", **{"class": "fast"}))
    (claim,) = until(lambda: shared(world, "pvc", name))

    world.create(warning_about(claim, message))

    found = until(lambda: cache_condition(world, name, reason))
    assert claim["metadata"]["name"] in found["message"] and message in found["message"]


@pytest.mark.parametrize("case", ["bound", "created-anew"])
def test_an_old_warning_about_the_users_claim_does_not_count(world: Any, manifest: Any, case: str) -> None:
    name = f"old-warning-{case}"
    former = create_claim(world, name)
    world.create(warning_about(former, "no access mode"))
    if case == "bound":
        world.set_status("pvc", name, {"phase": "Bound"})
    else:
        world.patch("pvc", name, {"metadata": {"finalizers": None}})
        world.delete("pvc", name)
        until(lambda: world.find("pvc", name) is None)
        create_claim(world, name)

    world.apply(cached(manifest, name, name, claim=name))

    assert until(lambda: world.condition(name, "ModelCached"))["reason"] == "FetchingModel"


def test_a_warning_about_the_users_claim_without_a_volume_counts(
    world: Any, manifest: Any, name: str
) -> None:
    world.create(warning_about(create_claim(world, name), "no access mode"))

    world.apply(cached(manifest, name, name, claim=name))

    assert until(lambda: cache_condition(world, name, "WrongAccessMode"))


def test_a_download_asks_for_gpus_while_the_users_claim_has_no_volume(
    world: Any, manifest: Any, name: str
) -> None:
    bound = f"{name[:40]}-bound"
    create_claim(world, name)
    create_claim(world, bound)
    world.set_status("pvc", bound, {"phase": "Bound"})

    for claim in (name, bound):
        world.apply(
            manifest(
                claim,
                model={"uri": f"hf://tests/{claim}", "cache": {"claim": claim}},
                resources={"gpu": 2, "memory": "8Gi"},
            )
        )

    limits = {claim: until(lambda c=claim: limits_of_job(world, c)) for claim in (name, bound)}
    assert limits == {name: {"memory": "8Gi", "nvidia.com/gpu": "2"}, bound: {"memory": "8Gi"}}


def limits_of_job(world: Any, name: str) -> dict[str, str]:
    job = job_of(world, name)
    return job["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"] if job else {}


def warning_about(claim: dict[str, Any], message: str) -> dict[str, Any]:
    """Return the Event that the controller of volumes posts."""
    about = {key: claim["metadata"][key] for key in ("name", "namespace", "uid")}
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": "claim."},
        "involvedObject": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", **about},
        "type": "Warning",
        "reason": "ProvisioningFailed",
        "message": message,
        "lastTimestamp": "2026-01-01T00:00:00Z",
    }
