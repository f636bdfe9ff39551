"""The operator's settings, which are fixed at its start."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from engine_server.contract.base.version import VERSION

# The Pod Security Standard that engine pods must satisfy.
PodSecurity = Literal["restricted", "baseline", "any"]

# Names, in which `*` stands for any characters; None allows all.
Patterns = tuple[str, ...] | None
PROJECTED_SOURCES = ("clusterTrustBundle", "configMap", "downwardAPI", "secret", "serviceAccountToken")


class PodPolicy(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True, omit_defaults=True
):
    """What a spec may ask of its pods beyond the Pod Security Standard. A profile may have other values."""

    priority_classes: Patterns = None
    # False: only the scheduler chooses a node.
    node_name: bool = True
    schedulers: Patterns = None
    runtime_classes: Patterns = None
    # Keys, of pods and of the service account.
    annotations: Patterns = None
    # Of containers and of `image` volumes.
    images: Patterns = None
    # Of projected volumes. Others, such as podCertificate, give pods more than the token of their account.
    projected_sources: Patterns = PROJECTED_SOURCES
    # By namespace: the profiles of which an LLMDeployment there must choose one, and whose fields it may not replace.
    required_profiles: dict[str, tuple[str, ...]] = {}


@dataclass(frozen=True, slots=True)
class Settings:
    # For LLMDeployments without an image of their own.
    engine_image: str
    # This installation, as the NAMESPACE/NAME of its Lease.
    operator: str = ""
    # Manage LLMDeployments that another operator manages.
    take_over: bool = False
    # The namespaces to watch; all if there are none.
    namespaces: tuple[str, ...] = ()
    pod_security: PodSecurity = "restricted"
    # Allow a podTemplate to choose a service account.
    allow_service_account: bool = False
    pod_policy: PodPolicy = field(default_factory=PodPolicy)
    # Values for the specs that choose one by name: `resources` and `podTemplate`.
    profiles: Mapping[str, Any] = field(default_factory=dict)
    # Secrets for the image of engines, in the namespace of each LLMDeployment.
    image_pull_secrets: tuple[str, ...] = ()
    # What may stand before the slash of a served name that looks like the NAMESPACE/NAME of an object.
    served_name_organizations: frozenset[str] = frozenset()
    # The peers that may reach engines, as in a NetworkPolicy; without any there are no NetworkPolicies.
    network_peers: tuple[dict[str, Any], ...] = ()
    # Engines accept only the calls of the router and of the operator, by keys that are derived from root keys.
    engine_keys: bool = False
    # The interval of lists that find what watches have lost.
    relist_seconds: float = 60
    # A watch without an event or a bookmark for so long is opened again; the API server sends a bookmark every minute.
    watch_silence_seconds: float = 70
    version: str = VERSION
