"""The common fields of a pod template. All others that a pod has are kept as they are."""

from typing import Annotated

from msgspec import Meta

from llm_operator.api.schema import Object, Open, Section, about

# Null removes a field of the operator's template; without this the API server would drop the null.
NULLABLE = Meta(extra_json_schema={"nullable": True})
Text = Annotated[str | None, NULLABLE]
Texts = Annotated[dict[str, Text] | None, NULLABLE]


class PodMetadata(Open, frozen=True):
    labels: Annotated[
        Texts, about("Labels that are added to the pods. Those of the operator cannot be changed.")
    ] = None
    annotations: Annotated[Texts, about("Annotations that are added to the pods.")] = None


class Toleration(Open, frozen=True):
    key: Annotated[Text, about("The taint's key; all keys without one, with operator Exists.")] = None
    operator: Annotated[Text, about("Exists, or Equal (the default), which compares the value.")] = None
    value: Annotated[Text, about("The taint's value, with operator Equal.")] = None
    effect: Annotated[Text, about("NoSchedule, PreferNoSchedule or NoExecute; all without one.")] = None


class PullSecret(Open, frozen=True):
    name: Annotated[str, about("The name of a Secret of type kubernetes.io/dockerconfigjson.")]


class Container(Open, frozen=True):
    name: Annotated[
        str,
        about("engine, or model for the one that fetches the model; any other name adds a container."),
    ]
    image: Annotated[Text, about("The image; for the engine use engine.image.")] = None
    env: Annotated[
        tuple[Object, ...] | None,
        NULLABLE,
        about("Variables, merged by name; for engine and model alike use engine.env."),
    ] = None
    resources: Annotated[
        Object | None, NULLABLE, about("Requests and limits; for the engine use spec.resources.")
    ] = None
    security_context: Annotated[
        Object | None,
        NULLABLE,
        about(
            "Merged over the operator's. An added container needs allowPrivilegeEscalation: false and"
            " capabilities: {drop: [ALL]}, unless the operator runs with a lower --pod-security."
        ),
    ] = None
    volume_mounts: Annotated[
        tuple[Object, ...] | None, NULLABLE, about("Mounts of volumes, merged by mountPath.")
    ] = None


class Volume(Open, frozen=True):
    name: Annotated[str, about("The name; tmp, cache, shm and models are the operator's own volumes.")]


class PodSpec(Open, frozen=True):
    node_selector: Annotated[
        Texts, about("Labels of the nodes on which pods may run, such as a GPU's product.")
    ] = None
    tolerations: Annotated[
        tuple[Toleration, ...] | None,
        NULLABLE,
        about("Taints of nodes that pods tolerate, added to the operator's own for GPUs."),
    ] = None
    affinity: Annotated[
        Object | None, NULLABLE, about("Rules by which nodes are chosen, in relation to labels or to pods.")
    ] = None
    topology_spread_constraints: Annotated[
        tuple[Object, ...] | None,
        NULLABLE,
        about(
            "Rules by which replicas are spread over zones or nodes. Select fairlead.dev/llmdeployment: NAME, with"
            " matchLabelKeys: [pod-template-hash], so that a rollout does not count the pods that it replaces."
        ),
    ] = None
    priority_class_name: Annotated[Text, about("The PriorityClass of the pods.")] = None
    runtime_class_name: Annotated[Text, about("The RuntimeClass of the pods, such as nvidia.")] = None
    image_pull_secrets: Annotated[
        tuple[PullSecret, ...] | None,
        NULLABLE,
        about("Secrets for private registries, merged by name; these replace the service account's."),
    ] = None
    containers: Annotated[
        tuple[Container, ...] | None,
        NULLABLE,
        about("Containers, merged by name: engine is the operator's, others are added beside it."),
    ] = None
    init_containers: Annotated[
        tuple[Container, ...] | None,
        NULLABLE,
        about("Containers that run before, merged by name: model, if there is one, is the operator's."),
    ] = None
    volumes: Annotated[tuple[Volume, ...] | None, NULLABLE, about("Volumes of the pods, merged by name.")] = (
        None
    )


class PodTemplate(Section, frozen=True):
    metadata: Annotated[PodMetadata | None, about("Labels and annotations of the pods.")] = None
    spec: Annotated[
        PodSpec | None, about("Any field of a pod's spec; the common ones are described here.")
    ] = None
