"""The start of deployments: obstacles from conditions, and the scale from zero on a real API server."""

from datetime import UTC, datetime

import msgspec
import pytest
from kubernetes_objects import llmd

from engine_server.contract.cluster.api import Key
from engine_server.router.obstacle import Obstacle
from engine_server.router.routing.directory import Target
from engine_server.router.routing.waker import WakeError
from engine_server.router.sources.kubernetes.access import Access, from_kubeconfig
from engine_server.router.sources.kubernetes.objects import FailedStart, LLMDeployment
from engine_server.router.sources.kubernetes.source import KubernetesSource
from engine_server.router.sources.kubernetes.start import ScaleFromZero, find_obstacle


def deployment(reason: str, *, replicas: int = 1, autoscaling: dict | None = None, observed: int = 3):
    """Return generation 3 of an LLMDeployment that is not ready."""
    ready = {"type": "Ready", "status": "False", "reason": reason, "message": "words"}
    spec = {"replicas": replicas, **({"autoscaling": autoscaling} if autoscaling else {})}
    manifest = llmd("m", spec=spec, namespace="x", generation=3)
    manifest["status"] = {"conditions": [{**ready, "observedGeneration": observed}]}
    return msgspec.convert(manifest, LLMDeployment)


def test_a_start_that_was_given_up_is_tried_again_after_a_pause_that_doubles():
    def retry_at(count: int, observed: int = 3) -> float:
        failed = deployment("StartFailed", replicas=0, autoscaling={"max": 1}, observed=observed)
        failed.status.failed_start = FailedStart(datetime(2026, 1, 1, 12, tzinfo=UTC), count)
        obstacle = find_obstacle(failed)
        assert (obstacle.reason, obstacle.permanent) == ("StartFailed", False)
        return obstacle.retry_at

    noon = datetime(2026, 1, 1, 12, tzinfo=UTC).timestamp()
    assert [retry_at(count) - noon for count in (1, 2, 4, 5, 100)] == [120, 240, 960, 1800, 1800]
    # The scale to zero is a later generation.
    assert retry_at(1, observed=2) == noon + 120


def test_a_start_that_was_given_up_is_no_obstacle_once_the_deployment_is_ready():
    woken = deployment("StartFailed", replicas=0, autoscaling={"max": 1})
    woken.status.failed_start = FailedStart(datetime(2026, 1, 1, 12, tzinfo=UTC), 1)
    woken.status.conditions[0].status = "True"

    assert find_obstacle(woken) == Obstacle()


class LastDeployment:
    """A directory that keeps the last deployment that a source puts."""

    def put(self, deployment) -> None:
        self.last = deployment


@pytest.mark.parametrize("forwards", [False, True])
def test_engines_of_a_cluster_take_clients_credentials_only_if_that_is_wanted(forwards):
    source, directory = (
        KubernetesSource(Access("http://h"), [], forwards_credentials=forwards),
        LastDeployment(),
    )
    source._directory = directory

    source._on_deployment(deployment("Unschedulable"), exists=True)

    assert directory.last.takes_credentials == forwards


@pytest.mark.parametrize(
    "reason",
    [
        *("ImagePullBackOff", "InvalidSpec", "SecretNotFound"),
        *("VolumeFull", "StorageClassNotFound", "WrongAccessMode", "NoAdminKey"),
    ],
)
def test_a_deployment_with_a_permanent_problem_cannot_start(reason):
    obstacle = find_obstacle(deployment(reason))
    assert obstacle.permanent and (obstacle.reason, obstacle.message) == (reason, "words")


@pytest.mark.parametrize(
    "reason",
    ["Loading", "Starting", "FetchingModel", "Unschedulable", "VolumeInUse", "Evicted", "Restarting"],
)
def test_a_deployment_with_a_problem_that_may_pass_can_start(reason):
    obstacle = find_obstacle(deployment(reason))
    assert obstacle == Obstacle(reason, "words")


@pytest.mark.parametrize(("restarts", "permanent"), [(0, False), (1, False), (2, True)])
def test_an_engine_that_ended_once_can_start(restarts, permanent):
    crashed = deployment("CrashLoopBackOff")
    crashed.status.restarts = restarts
    assert find_obstacle(crashed).permanent == permanent


def test_a_condition_of_an_earlier_spec_says_nothing():
    assert find_obstacle(deployment("ImagePullBackOff", observed=2)) == Obstacle()


def test_a_deployment_without_replicas_and_autoscaling_is_stopped():
    obstacle = find_obstacle(deployment("ScaledToZero", replicas=0))
    assert obstacle.permanent and obstacle.reason == "Stopped"


def test_a_deployment_that_autoscaling_may_start_is_not_stopped():
    obstacle = find_obstacle(deployment("ScaledToZero", replicas=0, autoscaling={"min": 0, "max": 2}))
    assert obstacle == Obstacle()


def test_a_deployment_at_zero_that_its_spec_makes_impossible_cannot_start():
    assert find_obstacle(deployment("InvalidSpec", replicas=0, autoscaling={"max": 2})).permanent


class OneDeployment(KubernetesSource):
    """A source that has seen one LLMDeployment, without a cluster."""

    synced = True

    def __init__(self, found: LLMDeployment) -> None:
        super().__init__(Access("http://h"), [])
        self._found = found

    async def run(self, directory) -> None:
        self._directory = directory
        self._on_deployment(self._found, exists=True)


@pytest.mark.parametrize("reason", ["CrashLoopBackOff", "Unschedulable"])
async def test_callers_are_told_the_reason_and_an_id_with_which_the_log_has_the_message(
    start_router, eventually, caplog, reason
):
    found = deployment(reason)
    found.status.conditions[0].message = "RuntimeError: /models/secret\nrouter: a line of an engine's own"
    router = await start_router(sources=[OneDeployment(found)])
    await eventually(lambda: router.server._directory.resolve("m"))

    answers = []
    for _ in range(2):
        async with router.chat() as response:
            answers.append((response.status, response.headers["X-Request-Id"], await response.text()))

    for status, _, text in answers:
        assert status == 503 and '"no_replica"' in text and reason in text
        assert "RuntimeError" not in text
    (line,) = [record.getMessage() for record in caplog.records if "RuntimeError" in record.getMessage()]
    assert line.startswith(f"x/m: request {answers[0][1]} ") and "\n" not in line and reason in line


class Scales:
    """LLMDeployments of a namespace of its own, on the API server, and the source that follows them."""

    def __init__(self, client, followed):
        self._client = client
        self.source = followed.source
        self.directory = followed.directory

    def apply(self, name, **spec) -> None:
        self._client.apply(llmd(name, spec=spec))

    def scale(self, name, replicas) -> None:
        self._client.scale("llmd", name, replicas)

    def replicas(self, name) -> int:
        return self._client.get("llmd", name)["spec"]["replicas"]

    def route(self, name):
        return self.directory.route(Target(Key(self._client.namespace, name)))


@pytest.fixture
async def scales(api_server, namespaces, follow):
    """Return the scales in one of the namespaces."""
    client, _ = namespaces
    return Scales(client, await follow(from_kubeconfig(api_server.kubeconfig), client.namespace))


@pytest.mark.parametrize(("minimum", "replicas"), [(0, 1), (2, 2)])
async def test_scales_from_zero_to_the_minimum_of_the_autoscaling(scales, eventually, minimum, replicas):
    scales.apply("m", replicas=0, autoscaling={"min": minimum, "max": 3})
    await eventually(lambda: scales.route("m"))

    await scales.route("m").deployment.waker.wake()

    assert scales.replicas("m") == replicas
    await eventually(lambda: scales.route("m").deployment.waker is None)


async def test_each_time_at_zero_has_another_waker(scales, eventually):
    scales.apply("m", replicas=0, autoscaling={"max": 3})
    await eventually(lambda: scales.route("m"))
    first = scales.route("m").deployment.waker

    scales.scale("m", 1)
    await eventually(lambda: scales.route("m").deployment.waker is None)
    scales.scale("m", 0)
    await eventually(lambda: scales.route("m").deployment.waker is not None)

    assert scales.route("m").deployment.waker != first


async def test_does_not_scale_a_deployment_that_was_changed_unseen(scales, eventually):
    scales.apply("m", replicas=0, autoscaling={"max": 3})
    await eventually(lambda: scales.route("m"))
    waker = scales.route("m").deployment.waker
    stale = scales.source.deployment(waker.key)
    scales.scale("m", 3)

    class Unaware:
        access, session = scales.source.access, scales.source.session

        def deployment(self, key):
            return stale

    with pytest.raises(WakeError, match="409"):
        await ScaleFromZero(Unaware(), waker.key, waker.generation).wake()
    assert scales.replicas("m") == 3


async def test_a_stopped_deployment_is_not_scaled(scales, eventually):
    scales.apply("m", replicas=0)
    await eventually(lambda: scales.route("m"))
    stopped = scales.route("m").deployment
    assert stopped.waker is None and stopped.obstacle.permanent
