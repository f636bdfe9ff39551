"""The status of an LLMDeployment, as the API has it."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from llm_operator.api.schema import LIST_KEYS, LIST_TYPE, Count, Object, Section, about

BY_TYPE = {LIST_TYPE: "map", LIST_KEYS: ["type"]}
# The schema does not restrict a condition's type to these: a later operator may write more than an older CRD knows.
ConditionType = Literal["Ready", "Progressing", "Degraded", "NameTaken"]
ConditionStatus = Literal["True", "False", "Unknown"]


class Condition(Section, frozen=True, omit_defaults=False):
    type: Annotated[str, about("Ready, Progressing, Degraded or NameTaken.")]
    status: Annotated[ConditionStatus, about("True if the condition holds.")]
    reason: Annotated[str, about("One word for programs.")]
    message: Annotated[str, about("A sentence for people.")]
    last_transition_time: Annotated[
        str, Meta(extra_json_schema={"format": "date-time"}), about("The time of the last change of status.")
    ]
    observed_generation: Annotated[int, about("The generation of the spec that it refers to.")] = 0

    @property
    def is_bad(self) -> bool:
        return self.type in ("Degraded", "NameTaken") and self.status == "True"


class Status(Section, frozen=True, omit_defaults=False):
    observed_generation: Annotated[int, about("The generation of the spec that the status refers to.")] = 0
    replicas: Annotated[Count, about("Existing replicas.")] = 0
    ready_replicas: Annotated[Count, about("Replicas that are ready.")] = 0
    selector: Annotated[str, about("The label selector of the pods, for autoscalers.")] = ""
    conditions: Annotated[
        tuple[Condition, ...], Meta(extra_json_schema=BY_TYPE), about("The state, with reasons.")
    ] = ()

    def as_manifest(self) -> Object:
        return msgspec.json.decode(msgspec.json.encode(self), type=dict[str, Any])
