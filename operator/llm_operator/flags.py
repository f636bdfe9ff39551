"""The flags of `fairlead operator`."""

import argparse
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec

from engine_server.contract.base.command_line import Parser
from engine_server.contract.base.logs import add_log_flags
from engine_server.contract.cluster.api import DEFAULT_NAMESPACE
from engine_server.contract.cluster.labels import METRICS_PORT
from llm_operator.api.pod_policy import read_pod_policy
from llm_operator.api.profiles import read_profiles
from llm_operator.api.schema import SpecError
from llm_operator.autoscaling.routers import RouterService
from llm_operator.control.root_keys import KeySecrets
from llm_operator.settings import PodPolicy, PodSecurity, Settings

LEASE_NAME = "fairlead-operator"
# The tag in manifests/fairlead.yaml, which an overlay replaces.
PLACEHOLDER_TAG = "image-not-set"
OWN_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


@dataclass(frozen=True, slots=True)
class Options:
    """The parsed flags."""

    settings: Settings
    # None where the operator can't call the admin API of engines.
    key_secrets: KeySecrets | None
    # None where the operator does not scale.
    router_service: RouterService | None
    lease_namespace: str
    # Of health and of metrics.
    ports: tuple[int, int]
    log_level: str | None
    log_format: str | None


def parse(argv: list[str]) -> Options:
    """Return the options; for flags that can't be used, end the process with a message."""
    flags = parser()
    options = flags.parse_args(argv)
    key_secrets = None
    if options.admin_key_secret:
        key_secrets = KeySecrets(options.router_key_secret, options.admin_key_secret)
    elif options.router_key_secret:
        flags.error("--router-key-secret needs --admin-key-secret")
    settings = Settings(
        engine_image=options.engine_image,
        operator=f"{options.lease_namespace}/{LEASE_NAME}",
        take_over=options.take_over,
        namespaces=tuple(options.namespace),
        pod_security=options.pod_security,
        allow_service_account=options.allow_service_account,
        pod_policy=options.pod_policy_file or PodPolicy(),
        profiles=options.profiles_file,
        image_pull_secrets=tuple(options.engine_image_pull_secret),
        served_name_organizations=frozenset(options.served_name_organization),
        network_peers=options.network_peers_file,
        engine_keys=options.router_key_secret is not None,
        relist_seconds=options.relist_seconds,
        watch_silence_seconds=options.watch_silence_seconds,
    )
    return Options(
        settings=settings,
        key_secrets=key_secrets,
        router_service=options.router_service,
        lease_namespace=options.lease_namespace,
        ports=(options.health_port, options.metrics_port),
        log_level=options.log_level,
        log_format=options.log_format,
    )


def parser() -> argparse.ArgumentParser:
    flags = Parser(prog="fairlead operator", description="Turns LLMDeployments into pods.")
    flags.add_argument(
        "--engine-image", required=True, type=engine_image, help="for LLMDeployments without engine.image"
    )
    flags.add_argument(
        "--namespace", action="append", default=[], help="namespace to watch; repeatable (default: all)"
    )
    flags.add_argument("--lease-namespace", default=own_namespace(), help="namespace of the Lease")
    flags.add_argument(
        "--take-over", action="store_true", help="manage LLMDeployments that another operator manages"
    )
    flags.add_argument(
        "--allow-service-account", action="store_true", help="let a podTemplate choose its service account"
    )
    flags.add_argument(
        "--pod-security",
        default="restricted",
        choices=typing.get_args(PodSecurity),
        help="the Pod Security Standard that engine pods must satisfy",
    )
    flags.add_argument(
        "--pod-policy-file",
        type=pod_policy,
        metavar="FILE",
        help="YAML with the values that specs may ask of their pods: priorityClasses, nodeName, schedulers, "
        "runtimeClasses, annotations, images, projectedSources, requiredProfiles",
    )
    flags.add_argument(
        "--profiles-file",
        type=profiles,
        default={},
        metavar="FILE",
        help="YAML with the profiles that LLMDeployments may choose: NAME: {resources, podTemplate}",
    )
    flags.add_argument(
        "--engine-image-pull-secret",
        action="append",
        default=[],
        metavar="NAME",
        help="Secret for the engines' image, in the namespace of each LLMDeployment; repeatable",
    )
    flags.add_argument(
        "--served-name-organization",
        action="append",
        default=[],
        metavar="ORG",
        help="served names ORG/NAME are allowed even without a capital or a dot, as of openai/gpt-oss-20b; give "
        "routers the same. No namespace may be called so; repeatable",
    )
    flags.add_argument(
        "--network-peers-file",
        type=read_network_peers,
        default=(),
        metavar="FILE",
        help="YAML list of NetworkPolicyPeers: NetworkPolicies admit only these to engines",
    )
    flags.add_argument(
        "--router-key-secret",
        metavar="NAME",
        help="Secret in the namespace of the Lease with the router's root keys in its entry `keys`, one per line; one "
        "without the entry gets a random key. Engines accept only calls with keys that are derived from these",
    )
    flags.add_argument(
        "--admin-key-secret",
        metavar="NAME",
        help="Secret with the operator's own root keys, likewise, for the admin API of engines. Engines with adapters "
        "need it",
    )
    flags.add_argument(
        "--router-service",
        type=RouterService.parse,
        metavar="NAMESPACE/NAME",
        help="headless Service of all routers, whose demand scales LLMDeployments with spec.autoscaling; without it "
        "the operator scales none",
    )
    flags.add_argument(
        "--relist-seconds",
        type=float,
        default=60,
        help="interval of lists that find what watches have lost; pods are in every fifth",
    )
    flags.add_argument(
        "--watch-silence-seconds",
        type=float,
        default=70,
        help="silence after which a watch is opened again; the API server sends a bookmark every minute",
    )
    flags.add_argument(
        "--health-port", type=int, default=8081, help="port of /healthz and /metrics, for probes"
    )
    flags.add_argument("--metrics-port", type=int, default=METRICS_PORT, help="port of /metrics and /healthz")
    add_log_flags(flags)
    return flags


def own_namespace() -> str:
    """Return the namespace of this pod, or the default one outside a cluster."""
    return OWN_NAMESPACE.read_text().strip() if OWN_NAMESPACE.exists() else DEFAULT_NAMESPACE


def engine_image(image: str) -> str:
    """Return the image unless it is the placeholder. Raises argparse.ArgumentTypeError."""
    if image.endswith(f":{PLACEHOLDER_TAG}"):
        raise argparse.ArgumentTypeError(
            f"{image} is the placeholder of manifests/fairlead.yaml: the overlay must set this argument too"
        )
    return image


def pod_policy(path: str) -> PodPolicy:
    """Return the policy in a file. Raises argparse.ArgumentTypeError."""
    try:
        return read_pod_policy(Path(path))
    except SpecError as error:
        raise argparse.ArgumentTypeError(f"{path}: {error}") from None


def profiles(path: str) -> Mapping[str, Any]:
    """Return the profiles in a file. Raises argparse.ArgumentTypeError."""
    try:
        return read_profiles(Path(path))
    except SpecError as error:
        raise argparse.ArgumentTypeError(f"{path}: {error}") from None


def read_network_peers(path: str) -> tuple[dict[str, Any], ...]:
    """Return the peers in a file. Raises argparse.ArgumentTypeError."""
    peers = Annotated[tuple[dict[str, Any], ...], msgspec.Meta(min_length=1)]
    try:
        return msgspec.yaml.decode(Path(path).read_bytes(), type=peers)
    except (OSError, msgspec.MsgspecError) as error:
        raise argparse.ArgumentTypeError(f"{path}: {error}") from None
