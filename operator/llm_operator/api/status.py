"""The status of an LLMDeployment, as the API has it."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from llm_operator.api.schema import LIST_KEYS, LIST_TYPE, Count, Object, Section, about

BY_TYPE = {LIST_TYPE: "map", LIST_KEYS: ["type"]}
ConditionStatus = Literal["True", "False", "Unknown"]


class Condition(Section, frozen=True, omit_defaults=False):
    # The schema does not restrict it: a later operator may write more than an older CRD knows.
    type: Annotated[str, about("What it is about.")]
    status: Annotated[ConditionStatus, about("True if the condition holds.")]
    reason: Annotated[str, about("One word for programs.")]
    message: Annotated[str, about("A sentence for people.")]
    last_transition_time: Annotated[
        str, Meta(extra_json_schema={"format": "date-time"}), about("The time of the last change of status.")
    ]
    observed_generation: Annotated[int, about("The generation of the spec that it refers to.")] = 0


class Start(Section, frozen=True, omit_defaults=False):
    pod: Annotated[str, about("The pod of the replica.")]
    started_at: Annotated[str | None, about("The time at which the engine's container started.")] = None
    scheduled: Annotated[Count | None, about("Until a node took the pod.")] = None
    pulled: Annotated[Count | None, about("Until the image was pulled and the volumes were mounted.")] = None
    fetched: Annotated[Count | None, about("For the model's download, where the pod makes it.")] = None
    loaded: Annotated[Count | None, about("For loading the engine's libraries and the weights.")] = None
    warmed: Annotated[Count | None, about("For warming up: memory, kernels and graphs.")] = None
    ready: Annotated[Count | None, about("From the warm-up until the pod was ready.")] = None


class Scaling(Section, frozen=True, omit_defaults=False):
    wanted: Annotated[Count, about("The replicas that the operator wants.")]
    reason: Annotated[str, about("Why, in one word for programs.")]


class FailedStart(Section, frozen=True, omit_defaults=False):
    time: Annotated[
        str, Meta(extra_json_schema={"format": "date-time"}), about("The time at which it was given up.")
    ]
    reason: Annotated[str, about("One word for programs.")]
    message: Annotated[str, about("A sentence for people.")]
    count: Annotated[Count, about("Failed starts in a row.")]
    spec_hash: Annotated[
        str, about("Hash of the spec without replicas. A changed spec is started again without waiting.")
    ]


class ServedAdapter(Section, frozen=True):
    name: Annotated[str, about("The model name by which requests ask for it.")]
    hash: Annotated[str | None, about("A hash of the content that the pods serve.")] = None
    pods: Annotated[tuple[str, ...], about("The pods that serve it.")] = ()
    error: Annotated[str | None, about("The first reason why a ready pod does not serve it.")] = None


class ServedCommit(Section, frozen=True):
    commit: Annotated[str, about("The commit.")]
    pods: Annotated[tuple[str, ...], about("The ready pods that serve it.")] = ()


class Status(Section, frozen=True, omit_defaults=False):
    observed_generation: Annotated[int, about("The generation of the spec that the status refers to.")] = 0
    operator: Annotated[
        str,
        about(
            "The operator that manages the object, as the NAMESPACE/NAME of its Lease. Others change nothing."
        ),
    ] = ""
    replicas: Annotated[Count, about("Existing replicas.")] = 0
    ready_replicas: Annotated[Count, about("Replicas that are ready.")] = 0
    image: Annotated[str, about("The image of the engine that is in force.")] = ""
    restarts: Annotated[Count, about("Restarts of the containers of all existing replicas.")] = 0
    selector: Annotated[str, about("The label selector of the pods, for autoscalers.")] = ""
    start: Annotated[
        Start | None, about("The last start of a replica: the seconds of each phase that has ended.")
    ] = None
    commits: Annotated[
        tuple[ServedCommit, ...] | None,
        Meta(extra_json_schema={LIST_TYPE: "map", LIST_KEYS: ["commit"]}),
        about("The commits of the model on its hub, and the ready pods that serve each."),
    ] = None
    starting_since: Annotated[
        str | None,
        Meta(extra_json_schema={"format": "date-time"}),
        about("With autoscaling: the time since which more than its min is wanted, and no replica is ready."),
    ] = None
    failed_start: Annotated[
        FailedStart | None,
        about(
            "With autoscaling: the last start, if no replica was ready within rollout.progressDeadlineSeconds. It"
            " stays until a replica is ready or the spec changes; requests start a replica again after a pause."
        ),
    ] = None
    autoscaling: Annotated[
        Scaling | None,
        about("With autoscaling: the last decision of the operator, as it has changed."),
    ] = None
    adapters: Annotated[
        tuple[ServedAdapter, ...] | None,
        Meta(extra_json_schema={LIST_TYPE: "map", LIST_KEYS: ["name"]}),
        about("The adapters, and the pods that serve each."),
    ] = None
    conditions: Annotated[
        tuple[Condition, ...], Meta(extra_json_schema=BY_TYPE), about("The state, with reasons.")
    ] = ()

    def as_manifest(self) -> Object:
        """Return the status as the API server stores it, without nulls."""
        fields = msgspec.json.decode(msgspec.json.encode(self), type=dict[str, Any])
        manifest: Object = without_nulls(fields)
        return manifest


def without_nulls(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {key: without_nulls(item) for key, item in value.items() if item is not None}
