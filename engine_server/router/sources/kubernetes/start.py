"""The start of deployments in a cluster: what prevents it, and the scale from zero."""

from dataclasses import dataclass
from typing import Protocol

import aiohttp
import msgspec

from engine_server.contract.cluster.api import Key, collection_path
from engine_server.contract.cluster.failed_start import pause_seconds
from engine_server.contract.cluster.reasons import Reason, needs_person
from engine_server.router.obstacle import UNKNOWN, Obstacle
from engine_server.router.routing.waker import WakeError
from engine_server.router.sources.kubernetes.access import Access
from engine_server.router.sources.kubernetes.objects import LLMDeployment, Message

TIMEOUT_SECONDS = 10.0
# As the operator words it.
STOPPED = Obstacle(Reason.STOPPED, "spec.replicas is 0, and there is no spec.autoscaling", permanent=True)
# The operator has one reason for an engine that ended, once or again and again; so many restarts are a loop.
LOOP_RESTARTS = 2


def find_obstacle(deployment: LLMDeployment) -> Obstacle:
    """Return what prevents the start of a deployment."""
    condition = deployment.not_ready
    if condition is not None and needs_person(condition.reason) and not is_first_failure(deployment):
        return Obstacle(condition.reason, condition.message, permanent=True)
    if deployment.spec.replicas == 0:
        if deployment.spec.autoscaling is None:
            return STOPPED
        return pause_after_failure(deployment) or UNKNOWN
    return Obstacle(condition.reason, condition.message) if condition else UNKNOWN


def pause_after_failure(deployment: LLMDeployment) -> Obstacle | None:
    """Return the pause after a start that the operator has given up; None without one."""
    failure = deployment.status.failed_start
    if failure is None or not deployment.is_given_up:
        return None
    retry_at = failure.time.timestamp() + pause_seconds(failure.count)
    return Obstacle(Reason.START_FAILED, "the last start was given up", retry_at=retry_at)


def is_first_failure(deployment: LLMDeployment) -> bool:
    """Return True for an engine that ended once: the next attempt may succeed."""
    condition = deployment.not_ready
    is_loop = condition is not None and condition.reason == Reason.CRASH_LOOP
    return is_loop and deployment.status.restarts < LOOP_RESTARTS


class Cluster(Protocol):
    """The access to a cluster, and its objects as they were seen last."""

    access: Access
    session: aiohttp.ClientSession

    def deployment(self, key: Key) -> LLMDeployment | None:
        """Return an LLMDeployment, if it exists."""
        ...


@dataclass(frozen=True, slots=True)
class ScaleFromZero:
    """Scales a deployment that its autoscaling allows to be at zero. `generation` is that of its spec."""

    cluster: Cluster
    key: Key
    generation: int

    async def wake(self) -> None:
        """Set the number of replicas to the minimum of the autoscaling, at least one, if it still is zero."""
        found = self.cluster.deployment(self.key)
        if found is None or found.spec.replicas or found.spec.autoscaling is None:
            return
        access = self.cluster.access
        # The resource version makes the API server refuse the patch if the object has changed.
        patch = {
            "metadata": {"resourceVersion": found.metadata.resource_version},
            "spec": {"replicas": max(1, found.spec.autoscaling.min)},
        }
        try:
            async with self.cluster.session.patch(
                f"{access.server}{collection_path(self.key.namespace)}/{self.key.name}/scale",
                data=msgspec.json.encode(patch),
                headers={"Content-Type": "application/merge-patch+json", **await access.headers()},
                ssl=access.tls or True,
                timeout=aiohttp.ClientTimeout(total=TIMEOUT_SECONDS),
            ) as response:
                if response.status != 200:
                    status = msgspec.json.decode(await response.read() or b"{}", type=Message)
                    raise WakeError(f"{response.status} {status.message}")
        except (aiohttp.ClientError, TimeoutError, OSError, msgspec.MsgspecError) as error:
            raise WakeError(str(error) or type(error).__name__) from None
