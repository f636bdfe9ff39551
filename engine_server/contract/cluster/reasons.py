"""The reasons of an LLMDeployment's conditions, which the operator gives and the router reads.

The operator passes reasons of Kubernetes on, such as the kubelet's for a container that waits. Those that are not here
count as passing.
"""

from enum import StrEnum
from typing import Self


class Reason(StrEnum):
    """A reason in one word. One that needs a person is not removed by time: an object, an image or a quota must change.

    Others may pass, such as Unschedulable, which is how a cluster autoscaler comes to add a node.
    """

    needs_person: bool

    def __new__(cls, word: str, needs_person: bool = False) -> Self:
        reason = str.__new__(cls, word)
        reason._value_ = word
        reason.needs_person = needs_person
        return reason

    # Refusals of a plan.
    INVALID_SPEC = "InvalidSpec", True
    REFUSED = "Refused", True
    CHILD_EXISTS = "ChildExists", True
    NO_ADMIN_KEY = "NoAdminKey", True
    CHILD_TERMINATING = "ChildTerminating"

    # The replicas as a whole.
    REPLICAS_READY = "ReplicasReady"
    SCALED_TO_ZERO = "ScaledToZero"
    STOPPED = "Stopped"
    WAKING = "Waking"
    START_FAILED = "StartFailed"
    STARTING = "Starting"
    LOADING = "Loading"
    WARMING_UP = "WarmingUp"
    ROLLING_OUT = "RollingOut"
    COMPLETE = "Complete"
    PAUSED = "Paused"
    AS_EXPECTED = "AsExpected"
    QUOTA_EXCEEDED = "QuotaExceeded", True

    # Nodes and volumes.
    UNSCHEDULABLE = "Unschedulable"
    NODE_SELECTOR_MISMATCH = "NodeSelectorMismatch"
    UNTOLERATED_TAINT = "UntoleratedTaint"
    SCHEDULING_GATED = "SchedulingGated"
    CLAIM_PENDING = "ClaimPending"
    CLAIM_NOT_FOUND = "ClaimNotFound", True
    CLAIM_TERMINATING = "ClaimTerminating"
    SECRET_NOT_FOUND = "SecretNotFound", True
    CONFIG_MAP_NOT_FOUND = "ConfigMapNotFound", True
    KEY_NOT_FOUND = "KeyNotFound", True
    RUNTIME_HANDLER_NOT_FOUND = "RuntimeHandlerNotFound", True
    STORAGE_CLASS_NOT_FOUND = "StorageClassNotFound", True
    WRONG_ACCESS_MODE = "WrongAccessMode", True
    VOLUME_IN_USE = "VolumeInUse"
    VOLUME_FULL = "VolumeFull", True

    # Models and engines.
    CACHED = "Cached"
    FETCHING_MODEL = "FetchingModel"
    MODEL_ACCESS_DENIED = "ModelAccessDenied", True
    MODEL_MISSING = "ModelMissing", True
    MODEL_FETCH_FAILED = "ModelFetchFailed", True
    MODEL_UNUSABLE = "ModelUnusable", True
    INSUFFICIENT_GPU_MEMORY = "InsufficientGPUMemory", True
    INSUFFICIENT_MEMORY = "InsufficientMemory", True
    POD_FAILED = "PodFailed"
    MIXED_REVISIONS = "MixedRevisions"

    # Adapters and names.
    ADAPTERS_SERVED = "AdaptersServed"
    LOADING_ADAPTERS = "LoadingAdapters"
    NO_READY_REPLICA = "NoReadyReplica"
    ADAPTER_FAILED = "AdapterFailed", True
    ENGINE_UNREACHABLE = "EngineUnreachable"
    HELD_BY_AN_OLDER_ONE = "HeldByAnOlderOne", True

    # Kubernetes' own.
    FAILED_CREATE = "FailedCreate", True
    IMAGE_PULL_BACK_OFF = "ImagePullBackOff", True
    ERR_IMAGE_NEVER_PULL = "ErrImageNeverPull", True
    INVALID_IMAGE_NAME = "InvalidImageName", True
    CREATE_CONTAINER_CONFIG_ERROR = "CreateContainerConfigError", True
    CREATE_CONTAINER_ERROR = "CreateContainerError", True
    CRASH_LOOP = "CrashLoopBackOff", True
    DEPLOYMENT_PAUSED = "DeploymentPaused", True
    FAILED_MOUNT = "FailedMount"
    FAILED_ATTACH_VOLUME = "FailedAttachVolume"
    FAILED_CREATE_POD_SANDBOX = "FailedCreatePodSandBox"
    PROGRESS_DEADLINE_EXCEEDED = "ProgressDeadlineExceeded", True


PERMANENT = frozenset(reason.value for reason in Reason if reason.needs_person)


def needs_person(reason: str) -> bool:
    """Return True if time alone does not remove a reason. One that is not known here may pass."""
    return reason in PERMANENT
