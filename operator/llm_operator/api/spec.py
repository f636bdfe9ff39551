"""The LLMDeployment as users write it: typed, frozen, parsed once."""

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta, inspect

from engine_server.contract.cluster.api import API_VERSION, DEFAULT_NAMESPACE, KIND, Key
from engine_server.contract.cluster.labels import ROLLED_AT_ANNOTATION
from llm_operator.api import rules, validation
from llm_operator.api.bounds import check_form, check_size
from llm_operator.api.schema import (
    LIST_KEYS,
    LIST_TYPE,
    NOT_IN_PODS,
    Count,
    Object,
    Section,
    SpecError,
    about,
    fields_of,
    ruled,
    shaped,
)
from llm_operator.api.sections.adapter import Adapter
from llm_operator.api.sections.autoscaling import Autoscaling
from llm_operator.api.sections.budget import Budget
from llm_operator.api.sections.engine import Engine
from llm_operator.api.sections.model import Model
from llm_operator.api.sections.pod_template import PodTemplate
from llm_operator.api.sections.resources import Resources
from llm_operator.api.sections.rollout import Rollout
from llm_operator.api.sections.routing import Routing
from llm_operator.api.sections.service_account import ServiceAccount

PROFILE_PATTERN = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"


class LLMDeploymentSpec(Section, frozen=True):
    model: Annotated[
        Model,
        ruled(rules.CACHED_SOURCE),
        about("The model: where it comes from, and the names under which requests reach it."),
    ]
    adapters: Annotated[
        Annotated[tuple[Adapter, ...], Meta(max_length=64)] | None,
        Meta(extra_json_schema={LIST_TYPE: "map", LIST_KEYS: ["name"]}),
        NOT_IN_PODS,
        about(
            "LoRA adapters, and prompt adapters with --enable-prompt-adapter in engine.args, that requests may name as"
            " their model, at most 64; none by default. The first list, even an empty one, replaces the replicas, which"
            " then serve adapters."
        ),
    ] = None
    engine: Annotated[Engine, about("The engine's container: its image, flags, variables and files.")] = (
        Engine()
    )
    resources: Annotated[
        Resources, about("The resources of each replica, which is one pod: GPUs, CPU, memory and disk.")
    ] = Resources()
    replicas: Annotated[
        Count,
        NOT_IN_PODS,
        about(
            "The number of replicas, 1 by default; kubectl scale, HPA, KEDA and autoscaling set it too. 0 stops all"
            " of them; with autoscaling the next request starts one."
        ),
    ] = 1
    autoscaling: Annotated[
        Autoscaling | None,
        NOT_IN_PODS,
        ruled(rules.MIN_AT_MOST_MAX, rules.PANIC_WITHIN_STABLE),
        about(
            "Automatic scaling by the demand at the routers: the operator sets replicas. None by default: then"
            " kubectl, an HPA or KEDA may."
        ),
    ] = None
    routing: Annotated[
        Routing, NOT_IN_PODS, about("The way in which the router distributes requests over replicas.")
    ] = Routing()
    rollout: Annotated[
        Rollout, ruled(rules.HAS_STEP), about("The way in which a change reaches the replicas.")
    ] = Rollout()
    budget: Annotated[
        Budget,
        NOT_IN_PODS,
        about("The PodDisruptionBudget of the replicas, which holds when nodes are drained."),
    ] = Budget()
    profile: Annotated[
        Annotated[str, Meta(pattern=PROFILE_PATTERN)] | None,
        about(
            "The name of a profile of the operator (in the chart's values: profiles), whose resources and podTemplate"
            " hold where this spec has no values of its own; none by default. A changed profile takes effect with the"
            " next change of the spec."
        ),
    ] = None
    service_account: Annotated[
        ServiceAccount,
        NOT_IN_PODS,
        about(
            "The service account of the pods, NAME-engine. It has no rights, and its token is not mounted."
        ),
    ] = ServiceAccount()
    pod_template: Annotated[
        Object | None,
        shaped(PodTemplate),
        about(
            "Merged over the operator's pod template last, as kubectl patch merges, for what has no field here. The"
            " result must satisfy the Pod Security Standard of the operator, restricted by default."
        ),
    ] = None


class Metadata(msgspec.Struct, frozen=True):
    """The metadata that the operator reads."""

    name: str
    namespace: str = DEFAULT_NAMESPACE
    uid: str = ""
    generation: int = 0
    annotations: Object = {}


class LLMDeployment(Section, frozen=True):
    api_version: Annotated[str, Meta(pattern=f"^{API_VERSION}$")]
    kind: Annotated[str, Meta(pattern=f"^{KIND}$")]
    metadata: Metadata
    spec: LLMDeploymentSpec
    status: Any = None

    @property
    def key(self) -> Key:
        return Key(self.metadata.namespace, self.metadata.name)

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def namespace(self) -> str:
        return self.metadata.namespace

    @property
    def rolled_at(self) -> str:
        """The request to take the operator's current image and template; empty without one."""
        return str(self.metadata.annotations.get(ROLLED_AT_ANNOTATION, ""))

    @property
    def served_names(self) -> tuple[str, ...]:
        return self.spec.model.served_names or (self.name,)

    @property
    def has_adapters(self) -> bool:
        """True if the engines serve adapters, even if there are none at present."""
        return self.spec.adapters is not None


LLMDEPLOYMENT = inspect.type_info(Annotated[LLMDeployment, ruled(*rules.OBJECT_RULES)])


def parse(manifest: object) -> LLMDeployment:
    """Return the typed form of a manifest. Null counts as absent, as for the API server.

    Raises SpecError, which names the field, the problem and what is allowed.
    """
    check_form(manifest)
    given = without_nulls(manifest)
    if isinstance(given, Mapping):
        check_size(given.get("spec"))
    try:
        validation.check(given, LLMDEPLOYMENT)
    except validation.UnknownFieldError as error:
        paths = [path for path, _ in fields_of(LLMDeployment)]
        raise SpecError(error.path, error.problem + validation.suggestion(error.name, paths)) from None
    return msgspec.convert(given, LLMDeployment)


def without_nulls(value: object) -> object:
    """Remove nulls from objects, but for a podTemplate, where null removes a field of the operator's."""
    if isinstance(value, Mapping):
        return {
            key: item if key == "podTemplate" else without_nulls(item)
            for key, item in value.items()
            if item is not None
        }
    return [without_nulls(item) for item in value] if isinstance(value, list) else value
