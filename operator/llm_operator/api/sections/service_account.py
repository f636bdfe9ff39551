"""The service account of the pods."""

from typing import Annotated

from msgspec import Meta

from llm_operator.api.schema import LIST_KEYS, LIST_TYPE, Name, Section, about


class PullSecret(Section, frozen=True):
    name: Annotated[Name, about("The name of a Secret of type kubernetes.io/dockerconfigjson.")]


class ServiceAccount(Section, frozen=True):
    annotations: Annotated[
        dict[str, str] | None,
        about(
            "Annotations of the account, by which clouds give its pods an identity, such as eks.amazonaws.com/role-arn"
            " or iam.gke.io/gcp-service-account. None by default."
        ),
    ] = None
    image_pull_secrets: Annotated[
        Annotated[tuple[PullSecret, ...], Meta(max_length=16)] | None,
        Meta(extra_json_schema={LIST_TYPE: "map", LIST_KEYS: ["name"]}),
        about(
            "Secrets for private registries; by default those of the operator's flag, and of the namespace's account"
            " default. Replicas that start afterwards have the new ones."
        ),
    ] = None
