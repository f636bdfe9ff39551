"""The part of a pod template that plans depend on, typed, and the check that a podTemplate has left it whole."""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from engine_server.contract.cluster import labels
from engine_server.contract.cluster.adapters import MODEL_VARIABLE
from llm_operator.api.schema import SpecError
from llm_operator.plan.pod.overlay import PATH
from llm_operator.plan.pod.volumes import FETCHED


class Part(msgspec.Struct, frozen=True, rename="camel"):
    """An object of Kubernetes, of which the fields that are read have their types."""


class ConfigMap(Part, frozen=True):
    name: str = ""


class Claim(Part, frozen=True):
    claim_name: str = ""


class Image(Part, frozen=True):
    reference: str = ""


class Source(Part, frozen=True):
    config_map: ConfigMap | None = None


class Projected(Part, frozen=True):
    # Null in what the API server answers, if there are none.
    sources: tuple[Source, ...] | None = None


class Volume(Part, frozen=True):
    name: str
    config_map: ConfigMap | None = None
    projected: Projected | None = None
    image: Image | None = None
    persistent_volume_claim: Claim | None = None


class Mount(Part, frozen=True):
    name: str


class Variable(Part, frozen=True):
    name: str
    value: str = ""


class Container(Part, frozen=True):
    name: str
    image: str | None = None
    args: tuple[str, ...] = ()
    env: tuple[Variable, ...] = ()
    volume_mounts: tuple[Mount, ...] = ()


class PodSpec(Part, frozen=True):
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    volumes: tuple[Volume, ...] = ()


class Metadata(Part, frozen=True):
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class PodTemplate(Part, frozen=True):
    metadata: Metadata = Metadata()
    spec: PodSpec = PodSpec()

    @property
    def model(self) -> str:
        """The URI of the model that engines with adapters serve; empty if the template is for none."""
        variables = (each for container in self.spec.containers for each in container.env)
        return next((each.value for each in variables if each.name == MODEL_VARIABLE), "")

    @property
    def model_claim(self) -> str | None:
        """The claim that the model comes from, if any."""
        claims = {volume.name: volume.persistent_volume_claim for volume in self.spec.volumes}
        claim = claims.get(FETCHED.name)
        return claim.claim_name if claim else None

    @property
    def is_fetching(self) -> bool:
        """True if each pod fetches the model itself."""
        return any(each.name == labels.MODEL_CONTAINER for each in self.spec.init_containers)

    @property
    def config_maps(self) -> set[str]:
        """The ConfigMaps that pods mount."""
        projected = [volume.projected.sources or () for volume in self.spec.volumes if volume.projected]
        mounted = [volume.config_map for volume in self.spec.volumes]
        mounted += [source.config_map for sources in projected for source in sources]
        return {config_map.name for config_map in mounted if config_map}


def typed(template: object) -> PodTemplate:
    """Return the fields of a template that plans read; an empty view if it is not a pod template."""
    try:
        return msgspec.convert(template, PodTemplate)
    except msgspec.ValidationError:
        return PodTemplate()


def check_template(template: Mapping[str, Any], own_labels: Mapping[str, str]) -> None:
    """Raise SpecError for a template without what the operator's pods and Service need, which null may have removed."""
    try:
        pods = msgspec.convert(template, PodTemplate)
    except msgspec.ValidationError as error:
        problem, _, place = str(error).partition(" - at `$")
        raise SpecError(f"{PATH}{place.removesuffix('`')}", problem) from None
    if not own_labels.items() <= pods.metadata.labels.items():
        raise SpecError(f"{PATH}.metadata.labels", "the labels of the operator cannot be removed")
    if labels.ENGINE_CONTAINER not in (container.name for container in pods.spec.containers):
        raise SpecError(f"{PATH}.spec.containers", "the container engine cannot be removed")
    for volume in template["spec"].get("volumes", ()):
        if len(volume.keys() - {"name"}) != 1:
            raise SpecError(f"{PATH}.spec.volumes[{volume['name']}]", "a volume is of exactly one type")
    volumes = {volume.name for volume in pods.spec.volumes}
    for path, container in containers(pods.spec):
        if container.image is None:
            raise SpecError(f"{path}.image", "this field is required")
        for mount in container.volume_mounts:
            if mount.name not in volumes:
                raise SpecError(f"{path}.volumeMounts", f"there is no volume {mount.name}")


def containers(pod: PodSpec) -> Iterator[tuple[str, Container]]:
    """Yield each container with its path."""
    for field, listed in (("containers", pod.containers), ("initContainers", pod.init_containers)):
        for container in listed:
            yield f"{PATH}.spec.{field}[{container.name}]", container
