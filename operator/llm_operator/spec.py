"""The LLMDeployment as people write it: typed, frozen, parsed once at the edge."""
# ruff: noqa: RUF009 (accepts() makes dataclass fields)

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, ClassVar

from llm_operator.names import API_VERSION, KIND, NAME_LIMIT
from llm_operator.schema import (
    CPU_PATTERN,
    MEMORY_PATTERN,
    Accepts,
    Quantity,
    Rule,
    SpecError,
    accepts,
    mapping,
    parse_object,
    unknown_field,
)

__all__ = ["LLMDeployment", "LLMDeploymentSpec", "SpecError", "parse"]

NAME_PATTERN = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
SCHEMES = ("hf", "pypi", "pvc")
OWNED_FLAGS = (
    "--model",
    "--host",
    "--port",
    "--served-model-name",
    "--max-model-len",
    "--tensor-parallel-size",
    "--drain-timeout",
)
EPOCH = datetime.fromtimestamp(0, UTC)
TOP_LEVEL = ("apiVersion", "kind", "metadata", "spec", "status")
# Not part of what a pod is made from: changing one of these rolls nothing.
ROLLS_NOTHING = ("replicas", "autoscaling", "routing")


def is_owned(argument: str) -> bool:
    """Whether an engine argument sets a flag that the operator sets, spelt in full or shortened."""
    flag = argument.split("=")[0].replace("_", "-")
    return len(flag) > 3 and flag.startswith("--") and any(owned.startswith(flag) for owned in OWNED_FLAGS)


KNOWN_SOURCE = Rule(
    cel=f"!self.contains('://') || self.matches('^({'|'.join(SCHEMES)})://[^/].*')",
    message="a model is hf://ORG/NAME[@REVISION], pypi://PACKAGE, pvc://CLAIM/PATH, ORG/NAME or a path",
    holds=lambda uri: "://" not in uri or re.match(f"({'|'.join(SCHEMES)})://[^/].*", uri) is not None,
)
CLAIM_HAS_PATH = Rule(
    cel="!self.startsWith('pvc://') || self.matches('^pvc://[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[^/].*$')"
    " && !self.contains('..')",
    message="a model on a volume is pvc://CLAIM/PATH, with no .. in the path",
    holds=lambda uri: (
        not uri.startswith("pvc://")
        or (re.match(r"pvc://[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[^/].*$", uri) is not None and ".." not in uri)
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


@dataclass(frozen=True, slots=True)
class SecretRef:
    name: str = accepts("A Secret's name; the hub's token is its key `token`.", min_length=1, max_length=253)


@dataclass(frozen=True, slots=True)
class Model:
    uri: str = accepts(
        "hf://ORG/NAME[@REVISION], pypi://PACKAGE, pvc://CLAIM/PATH, ORG/NAME or a path in the image.",
        min_length=1,
        max_length=1024,
        rules=(KNOWN_SOURCE, CLAIM_HAS_PATH),
    )
    served_names: tuple[str, ...] = accepts(
        "The names that requests may ask for. Without any it is metadata.name.",
        default=(),
        max_items=16,
        list_type="set",
        items=Accepts(min_length=1, max_length=253, rules=(NOT_BLANK,)),
    )
    secret_ref: SecretRef | None = accepts("Where the hub's token is, for private models.", default=None)


@dataclass(frozen=True, slots=True)
class EnvVar:
    name: str = accepts("The variable's name.", min_length=1, max_length=253)
    value: str | None = accepts("Its value.", default=None)
    value_from: Mapping[str, Any] | None = accepts(
        "Where its value comes from, as in a container's env.", default=None
    )
    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="!(has(self.value) && has(self.valueFrom))",
            message="a variable has a value or a valueFrom, not both",
            holds=lambda env: env.value is None or env.value_from is None,
        ),
    )


@dataclass(frozen=True, slots=True)
class Engine:
    image: str | None = accepts(
        "The engine's image. Without it the operator chooses, and keeps its choice until the spec changes.",
        default=None,
        min_length=1,
        max_length=1024,
    )
    max_model_len: int | None = accepts(
        "The longest context, prompt and answer together; without it what the model was made for.",
        default=None,
        minimum=1,
    )
    args: tuple[str, ...] = accepts(
        "More flags of `fairlead engine`, as in a container's args.",
        default=(),
        max_items=128,
        items=Accepts(max_length=4096, rules=(NOT_OWNED,)),
    )
    env: tuple[EnvVar, ...] = accepts(
        "Environment variables, as in a container.", default=(), max_items=128, list_type="map"
    )


@dataclass(frozen=True, slots=True)
class Resources:
    gpu: int = accepts("GPUs for each replica; 0, the default, is a CPU pod.", default=0, minimum=0)
    cpu: Quantity | None = accepts(
        "CPU that each replica asks for; it is no limit.", default=None, pattern=CPU_PATTERN
    )
    memory: Quantity | None = accepts(
        "Memory that each replica gets: request and limit.", default=None, pattern=MEMORY_PATTERN
    )


@dataclass(frozen=True, slots=True)
class Autoscaling:
    max: int = accepts("The most replicas.", minimum=1)
    min: int = accepts("The fewest replicas; 0 lets it sleep.", default=0, minimum=0)
    target_in_flight: int | None = accepts("Requests under way for each replica.", default=None, minimum=1)
    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="!has(self.min) || self.min <= self.max",
            message="min is more than max",
            holds=lambda bounds: bounds.min <= bounds.max,
        ),
    )


@dataclass(frozen=True, slots=True)
class Routing:
    policy: str | None = accepts(
        "How the router chooses a replica; without it the router's own default.",
        default=None,
        choices=("least_load", "round_robin"),
    )


@dataclass(frozen=True, slots=True)
class Rollout:
    strategy: str = accepts(
        "surge starts a new replica before it ends an old one; inPlace needs no spare GPU.",
        default="surge",
        choices=("surge", "inPlace"),
    )
    drain_timeout_seconds: int = accepts(
        "How long a stopping replica may finish what it has.",
        default=60,
        minimum=1,
        maximum=86400,
    )


@dataclass(frozen=True, slots=True)
class LLMDeploymentSpec:
    model: Model = accepts("The model and where it comes from.")
    engine: Engine = accepts("How the engine runs.", default=Engine())
    resources: Resources = accepts("What each replica gets.", default=Resources())
    replicas: int = accepts("How many engines.", default=1, minimum=0, persisted_default=True)
    autoscaling: Autoscaling | None = accepts("Bounds and target for whoever scales.", default=None)
    routing: Routing = accepts("How requests are spread.", default=Routing())
    rollout: Rollout = accepts("How a change reaches the replicas.", default=Rollout())
    pod_template: Mapping[str, Any] | None = accepts(
        "Merged over the operator's pod template last, for what has no field here.", default=None
    )


@dataclass(frozen=True, slots=True)
class LLMDeployment:
    """One LLMDeployment. `spec_hash` covers what a pod is made from, as it was written."""

    namespace: str
    name: str
    spec: LLMDeploymentSpec
    spec_hash: str
    uid: str = ""
    generation: int = 0
    created: datetime = EPOCH

    @property
    def served_names(self) -> tuple[str, ...]:
        return self.spec.model.served_names or (self.name,)


def parse(manifest: Mapping[str, Any]) -> LLMDeployment:
    """The typed LLMDeployment; SpecError names the field, what is wrong and what is allowed."""
    given = mapping(manifest, "the manifest")
    for key, wanted in (("apiVersion", API_VERSION), ("kind", KIND)):
        if given.get(key) != wanted:
            raise SpecError(key, f"is {given.get(key)!r}; {wanted} is wanted")
    metadata = mapping(given.get("metadata"), "metadata")
    name = metadata.get("name")
    if not isinstance(name, str) or not NAME_RULE.holds(name):
        raise SpecError("metadata.name", f"{name!r} is not {NAME_RULE.message}")
    for key in given:
        if key not in TOP_LEVEL:
            raise SpecError(str(key), unknown_field(str(key), list(TOP_LEVEL)))
    if given.get("spec") is None:
        raise SpecError("spec", "is required")
    created = metadata.get("creationTimestamp")
    return LLMDeployment(
        namespace=metadata.get("namespace") or "default",
        name=name,
        spec=parse_object(LLMDeploymentSpec, given["spec"], "spec"),
        spec_hash=spec_hash(given["spec"]),
        uid=metadata.get("uid", ""),
        generation=metadata.get("generation", 0),
        created=parse_time(created) if created else EPOCH,
    )


NAME_RULE = Rule(
    cel=f"self.metadata.name.matches('{NAME_PATTERN}') && size(self.metadata.name) <= {NAME_LIMIT}",
    message=f"a name of lower-case letters, digits and hyphens that begins with a letter,"
    f" at most {NAME_LIMIT} characters",
    holds=lambda name: len(name) <= NAME_LIMIT and re.search(NAME_PATTERN, name) is not None,
)


def spec_hash(spec: Mapping[str, Any]) -> str:
    """Over the spec as written, so that a later operator's new defaults do not change it."""
    written = {key: value for key, value in spec.items() if key not in ROLLS_NOTHING}
    return hashlib.sha256(json.dumps(written, sort_keys=True, default=str).encode()).hexdigest()[:16]


def parse_time(text: str) -> datetime:
    return datetime.fromisoformat(text)
