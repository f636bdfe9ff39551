"""The LLMDeployment as people write it: typed, frozen, parsed once at the edge."""

import hashlib
import re
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from engine_server.contract import model_uri
from engine_server.contract.api import API_VERSION, DEFAULT_NAMESPACE, KIND, MAX_NAME_LENGTH, Key
from engine_server.contract.drain import DEFAULT_DRAIN_TIMEOUT_SECONDS
from engine_server.contract.served_names import NameClaim
from llm_operator.schema import Count, Object, Positive, Rule, Section, SpecError, about, ruled

__all__ = ["LLMDeployment", "LLMDeploymentSpec", "SpecError", "parse"]

NAME_PATTERN = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
SOURCE_PATTERN = f"^({'|'.join(model_uri.SCHEMES)})://[^/].*"
CLAIM_PATTERN = f"^pvc://{model_uri.CLAIM_PATTERN}/[^/].*$"
OWNED_FLAGS = (
    "--model",
    "--host",
    "--port",
    "--served-model-name",
    "--max-model-len",
    "--tensor-parallel-size",
    "--drain-timeout",
)


def is_owned(argument: str) -> bool:
    """Whether an engine argument sets a flag that the operator sets, spelt in full or shortened."""
    flag = argument.split("=")[0].replace("_", "-")
    return len(flag) > 3 and flag.startswith("--") and any(owned.startswith(flag) for owned in OWNED_FLAGS)


KNOWN_SOURCE = Rule(
    cel=f"!self.contains('://') || self.matches('{SOURCE_PATTERN}')",
    message="a model is hf://ORG/NAME[@REVISION], pypi://PACKAGE, pvc://CLAIM/PATH, ORG/NAME or a path",
    holds=lambda uri: "://" not in uri or re.search(SOURCE_PATTERN, uri) is not None,
)
CLAIM_HAS_PATH = Rule(
    cel=f"!self.startsWith('pvc://') || self.matches('{CLAIM_PATTERN}') && !self.contains('..')",
    message="a model on a volume is pvc://CLAIM/PATH, with no .. in the path",
    holds=lambda uri: (
        not uri.startswith("pvc://") or (re.search(CLAIM_PATTERN, uri) is not None and ".." not in uri)
    ),
)
NOT_OWNED = Rule(
    cel="!self.startsWith('--') || size(self.split('=')[0]) <= 3 || "
    f"![{', '.join(repr(flag) for flag in OWNED_FLAGS)}]"
    ".exists(flag, flag.startsWith(self.split('=')[0].replace('_', '-')))",
    message=f"the operator itself sets {', '.join(OWNED_FLAGS)}; model, engine.maxModelLen, resources.gpu"
    " and rollout say to what",
    holds=lambda argument: not is_owned(argument),
)
NOT_BLANK = Rule(
    cel="self.matches('^[^\\\\s]+$')",
    message="a served name has no white space in it",
    holds=lambda name: re.search(r"\s", name) is None,
)
NAME_RULE = Rule(
    cel=f"self.metadata.name.matches('{NAME_PATTERN}') && size(self.metadata.name) <= {MAX_NAME_LENGTH}",
    message=f"a name of lower-case letters, digits and hyphens that begins with a letter,"
    f" at most {MAX_NAME_LENGTH} characters",
    holds=lambda name: len(name) <= MAX_NAME_LENGTH and re.search(NAME_PATTERN, name) is not None,
)
MIN_AT_MOST_MAX = Rule(
    cel="!has(self.min) || self.min <= self.max",
    message="min is more than max",
    holds=lambda bounds: bounds.min <= bounds.max,
)
ONE_VALUE = Rule(
    cel="!(has(self.value) && has(self.valueFrom))",
    message="a variable has a value or a valueFrom, not both",
    holds=lambda variable: variable.value is None or variable.value_from is None,
)
BY_NAME = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}
INT_OR_STRING = {"x-kubernetes-int-or-string": True}
Name = Annotated[str, Meta(min_length=1, max_length=253)]
Cpu = Annotated[str, Meta(pattern=r"^[0-9]+(\.[0-9]+)?m?$")]
Memory = Annotated[str, Meta(pattern=r"^[0-9]+(\.[0-9]+)?(k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$")]
Seconds = Annotated[int, Meta(ge=1, le=86400, extra_json_schema={"format": "int32"})]
Whole = Annotated[int, Meta(ge=0)]


def check_unique(names: tuple[str, ...], path: str) -> None:
    for name in names:
        if names.count(name) > 1:
            raise SpecError(path, f"{name!r} is there more than once")


class SecretRef(Section, frozen=True):
    name: Annotated[Name, about("A Secret's name; the hub's token is its key `token`.")]


class Model(Section, frozen=True):
    uri: Annotated[
        str,
        Meta(min_length=1, max_length=1024, extra_json_schema=ruled(KNOWN_SOURCE, CLAIM_HAS_PATH)),
        about("hf://ORG/NAME[@REVISION], pypi://PACKAGE, pvc://CLAIM/PATH, ORG/NAME or a path in the image."),
    ]
    served_names: Annotated[
        tuple[Annotated[Name, Meta(extra_json_schema=ruled(NOT_BLANK))], ...],
        Meta(max_length=16, extra_json_schema={"x-kubernetes-list-type": "set"}),
        about("The names that requests may ask for. Without any it is metadata.name."),
    ] = ()
    secret_ref: Annotated[SecretRef | None, about("Where the hub's token is, for private models.")] = None

    def __post_init__(self) -> None:
        for rule in (KNOWN_SOURCE, CLAIM_HAS_PATH):
            rule.check(self.uri, "uri")
        for index, name in enumerate(self.served_names):
            NOT_BLANK.check(name, f"servedNames[{index}]")
        check_unique(self.served_names, "servedNames")


class EnvVar(Section, frozen=True):
    name: Annotated[Name, about("The variable's name.")]
    value: Annotated[str | None, about("Its value.")] = None
    value_from: Annotated[Object | None, about("Where its value comes from, as in a container's env.")] = None

    def __post_init__(self) -> None:
        ONE_VALUE.check(self, "")


class Engine(Section, frozen=True):
    image: Annotated[
        Annotated[str, Meta(min_length=1, max_length=1024)] | None,
        about("The engine's image. Without it the operator's, kept from then on until the spec changes."),
    ] = None
    max_model_len: Annotated[
        Positive | None,
        about("The longest context, prompt and answer together; without it what the model was made for."),
    ] = None
    args: Annotated[
        tuple[Annotated[str, Meta(max_length=4096, extra_json_schema=ruled(NOT_OWNED))], ...],
        Meta(max_length=128),
        about("More flags of `fairlead engine`, as in a container's args."),
    ] = ()
    env: Annotated[
        tuple[Annotated[EnvVar, Meta(extra_json_schema=ruled(ONE_VALUE))], ...],
        Meta(max_length=128, extra_json_schema=BY_NAME),
        about("Environment variables, as in a container."),
    ] = ()

    def __post_init__(self) -> None:
        for index, argument in enumerate(self.args):
            NOT_OWNED.check(argument, f"args[{index}]")
        check_unique(tuple(variable.name for variable in self.env), "env")


class Resources(Section, frozen=True):
    gpu: Annotated[Count, about("GPUs for each replica; 0, the default, is a CPU pod.")] = 0
    cpu: Annotated[
        Whole | Cpu | None,
        Meta(extra_json_schema=INT_OR_STRING),
        about("CPU that each replica asks for; it is no limit."),
    ] = None
    memory: Annotated[
        Whole | Memory | None,
        Meta(extra_json_schema=INT_OR_STRING),
        about("Memory that each replica gets: request and limit."),
    ] = None


class Autoscaling(Section, frozen=True):
    max: Annotated[Positive, about("The most replicas.")]
    min: Annotated[Count, about("The fewest replicas; 0 lets it sleep.")] = 0
    target_in_flight: Annotated[Positive | None, about("Requests under way for each replica.")] = None

    def __post_init__(self) -> None:
        MIN_AT_MOST_MAX.check(self, "")


class Routing(Section, frozen=True):
    policy: Annotated[
        Literal["least_load", "round_robin"] | None,
        about("How the router chooses a replica; without it as the router does by default."),
    ] = None


class Rollout(Section, frozen=True):
    strategy: Annotated[
        Literal["surge", "inPlace"],
        about("surge starts a new replica before it ends an old one; inPlace needs no spare GPU."),
    ] = "surge"
    drain_timeout_seconds: Annotated[
        Seconds, about("How long a stopping replica may finish what it has.")
    ] = DEFAULT_DRAIN_TIMEOUT_SECONDS


class LLMDeploymentSpec(Section, frozen=True):
    model: Annotated[Model, about("The model and where it comes from.")]
    engine: Annotated[Engine, about("How the engine runs.")] = Engine()
    resources: Annotated[Resources, about("What each replica gets.")] = Resources()
    replicas: Annotated[Count, about("How many engines.")] = 1
    autoscaling: Annotated[
        Autoscaling | None,
        Meta(extra_json_schema=ruled(MIN_AT_MOST_MAX)),
        about("Bounds and target for whoever scales."),
    ] = None
    routing: Annotated[Routing, about("How requests are spread.")] = Routing()
    rollout: Annotated[Rollout, about("How a change reaches the replicas.")] = Rollout()
    pod_template: Annotated[
        Object | None, about("Merged over the operator's pod template last, for what has no field here.")
    ] = None


# A change of one of these rolls nothing.
ROLLS_NOTHING = {"replicas": 1, "autoscaling": None, "routing": Routing()}


class Metadata(msgspec.Struct, frozen=True):
    """What of it matters here."""

    name: str = ""
    namespace: str = DEFAULT_NAMESPACE
    uid: str = ""
    generation: int = 0

    def __post_init__(self) -> None:
        NAME_RULE.check(self.name, "name")


class LLMDeployment(Section, frozen=True):
    api_version: Annotated[str, Meta(pattern=f"^{API_VERSION}$")]
    kind: Annotated[str, Meta(pattern=f"^{KIND}$")]
    metadata: Metadata
    spec: LLMDeploymentSpec
    status: Any = None

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def namespace(self) -> str:
        return self.metadata.namespace

    @property
    def spec_hash(self) -> str:
        """Over what a pod is made from; defaults are left out, so that a later operator's do not change it."""
        rolling = msgspec.structs.replace(self.spec, **ROLLS_NOTHING)
        return hashlib.sha256(msgspec.json.encode(rolling, order="sorted")).hexdigest()[:16]

    @property
    def served_names(self) -> tuple[str, ...]:
        return self.spec.model.served_names or (self.name,)

    @property
    def routed_names(self) -> tuple[str, ...]:
        """Every name that the router may send a request under."""
        return NameClaim(0.0, Key(self.namespace, self.name), self.served_names).names


parse = LLMDeployment.parse
