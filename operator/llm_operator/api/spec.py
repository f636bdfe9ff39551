"""The LLMDeployment as users write it: typed, frozen, parsed once."""

import hashlib
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, inspect

from engine_server.contract.api import API_VERSION, DEFAULT_NAMESPACE, KIND, Key
from engine_server.contract.drain import DEFAULT_DRAIN_TIMEOUT_SECONDS
from engine_server.contract.served_names import NameClaim
from llm_operator.api import rules, validation
from llm_operator.api.schema import (
    LIST_KEYS,
    LIST_TYPE,
    Count,
    Object,
    Positive,
    Section,
    SpecError,
    about,
    fields_of,
    ruled,
)

INT_OR_STRING = {"x-kubernetes-int-or-string": True}
Name = Annotated[str, Meta(min_length=1, max_length=253)]
Cpu = Annotated[str, Meta(pattern=r"^[0-9]+(\.[0-9]+)?m?$")]
Memory = Annotated[str, Meta(pattern=r"^[0-9]+(\.[0-9]+)?(k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$")]
Seconds = Annotated[int, Meta(ge=1, le=86400, extra_json_schema={"format": "int32"})]
Whole = Annotated[int, Meta(ge=0)]


class SecretRef(Section, frozen=True):
    name: Annotated[Name, about("The name of a Secret whose key `token` is the hub's token.")]


class Model(Section, frozen=True):
    uri: Annotated[
        str,
        Meta(min_length=1, max_length=1024),
        ruled(rules.KNOWN_SOURCE, rules.CLAIM_HAS_PATH),
        about("hf://ORG/NAME[@REVISION], pypi://PACKAGE, pvc://CLAIM/PATH, ORG/NAME or a path in the image."),
    ]
    served_names: Annotated[
        tuple[Annotated[Name, ruled(rules.NOT_BLANK)], ...],
        Meta(max_length=16, extra_json_schema={LIST_TYPE: "set"}),
        about("The model names that requests may use; metadata.name by default."),
    ] = ()
    secret_ref: Annotated[SecretRef | None, about("The Secret with the hub's token, for private models.")] = (
        None
    )


class EnvVar(Section, frozen=True):
    name: Annotated[Name, about("The name of the variable.")]
    value: Annotated[str | None, about("The value.")] = None
    value_from: Annotated[Object | None, about("The source of the value, as in a container's env.")] = None


class Engine(Section, frozen=True):
    image: Annotated[
        Annotated[str, Meta(min_length=1, max_length=1024)] | None,
        about("The image of the engine; by default the operator's, which then stays until the spec changes."),
    ] = None
    max_model_len: Annotated[
        Positive | None,
        about("The longest context in tokens, prompt and answer together; by default the model's own."),
    ] = None
    args: Annotated[
        tuple[Annotated[str, Meta(max_length=4096), ruled(rules.NOT_OWNED)], ...],
        Meta(max_length=128),
        about("Further flags of `fairlead engine`, as in a container's args."),
    ] = ()
    env: Annotated[
        tuple[Annotated[EnvVar, ruled(rules.ONE_VALUE)], ...],
        Meta(max_length=128, extra_json_schema={LIST_TYPE: "map", LIST_KEYS: ["name"]}),
        about("Environment variables, as in a container."),
    ] = ()


class Resources(Section, frozen=True):
    gpu: Annotated[Count, about("GPUs for each replica; 0, the default, is a CPU pod.")] = 0
    cpu: Annotated[
        Whole | Cpu | None,
        Meta(extra_json_schema=INT_OR_STRING),
        about("CPU request of each replica; it has no CPU limit."),
    ] = None
    memory: Annotated[
        Whole | Memory | None,
        Meta(extra_json_schema=INT_OR_STRING),
        about("Memory request and limit of each replica."),
    ] = None


class Autoscaling(Section, frozen=True):
    max: Annotated[Positive, about("The largest number of replicas.")]
    min: Annotated[Count, about("The smallest number of replicas; 0 allows scaling to zero.")] = 0
    target_in_flight: Annotated[Positive | None, about("Requests in flight for each replica.")] = None


class Routing(Section, frozen=True):
    policy: Annotated[
        Literal["least_load", "round_robin"] | None,
        about("The policy by which the router picks a replica; the router's own by default."),
    ] = None


class Rollout(Section, frozen=True):
    strategy: Annotated[
        Literal["surge", "inPlace"],
        about("surge starts a new replica before it ends an old one; inPlace needs no spare GPU."),
    ] = "surge"
    drain_timeout_seconds: Annotated[
        Seconds, about("The time in which a stopping replica may finish its requests.")
    ] = DEFAULT_DRAIN_TIMEOUT_SECONDS


class LLMDeploymentSpec(Section, frozen=True):
    model: Annotated[Model, about("The model and its origin.")]
    engine: Annotated[Engine, about("The configuration of the engine.")] = Engine()
    resources: Annotated[Resources, about("The resources of each replica.")] = Resources()
    replicas: Annotated[Count, about("The number of engines.")] = 1
    autoscaling: Annotated[
        Autoscaling | None, ruled(rules.MIN_AT_MOST_MAX), about("Bounds and target for autoscalers.")
    ] = None
    routing: Annotated[Routing, about("The distribution of requests over replicas.")] = Routing()
    rollout: Annotated[Rollout, about("The way in which a change reaches the replicas.")] = Rollout()
    pod_template: Annotated[
        Object | None, about("Merged over the operator's pod template last, for what has no field here.")
    ] = None


# The fields that pods do not depend on, with their defaults: a change of one of these replaces no pod.
NOT_IN_PODS = {"replicas": 1, "autoscaling": None, "routing": Routing()}


class Metadata(msgspec.Struct, frozen=True):
    """The metadata that the operator reads."""

    name: str
    namespace: str = DEFAULT_NAMESPACE
    uid: str = ""
    generation: int = 0


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
    def spec_hash(self) -> str:
        """Hash of the fields that pods depend on; defaults are left out, so that new fields do not change it."""
        pod_spec = msgspec.structs.replace(self.spec, **NOT_IN_PODS)
        return hashlib.sha256(msgspec.json.encode(pod_spec, order="sorted")).hexdigest()[:16]

    @property
    def served_names(self) -> tuple[str, ...]:
        return self.spec.model.served_names or (self.name,)

    @property
    def routed_names(self) -> tuple[str, ...]:
        """Every name under which the router may send a request."""
        return NameClaim(0.0, self.key, self.served_names).names


LLMDEPLOYMENT = inspect.type_info(Annotated[LLMDeployment, ruled(*rules.OBJECT_RULES)])


def parse(manifest: object) -> LLMDeployment:
    """Return the typed form of a manifest. Null counts as absent, as for the API server.

    Raises SpecError, which names the field, the problem and what is allowed.
    """
    given = without_nulls(manifest)
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
