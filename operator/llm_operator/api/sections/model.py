"""The model that an LLMDeployment serves."""

from typing import Annotated

from msgspec import Meta

from engine_server.contract.cluster.model_uri import MODEL_FORMS, SOURCES
from llm_operator.api import rules
from llm_operator.api.schema import LIST_TYPE, NOT_IN_PODS, Name, Section, about, ruled
from llm_operator.api.sections.cache import Cache

SECRET_KEYS = "; ".join(
    f"for {source.SCHEME}:// {', '.join(variable.key for variable in source.SECRET)}"
    for source in SOURCES
    if source.SECRET
)


class SecretRef(Section, frozen=True):
    name: Annotated[
        Name,
        about(f"The name of a Secret in the same namespace, with these keys: {SECRET_KEYS}."),
    ]


class Model(Section, frozen=True):
    uri: Annotated[
        str,
        Meta(min_length=1, max_length=1024),
        ruled(rules.MODEL_URI),
        about(f"The model: {MODEL_FORMS}, in the image."),
    ]
    served_names: Annotated[
        tuple[Annotated[Name, ruled(rules.PRINTABLE)], ...],
        Meta(max_length=16, extra_json_schema={LIST_TYPE: "set"}),
        NOT_IN_PODS,
        about("The model names that requests may use; metadata.name by default."),
    ] = ()
    secret_ref: Annotated[
        SecretRef | None, about("The Secret with the credentials of the hub or bucket.")
    ] = None
    cache: Annotated[
        Cache | None,
        ruled(rules.CLAIM_OR_SIZE, rules.SIZE_WITH_OPTIONS),
        about("A volume into which the model is downloaded once, before a replica starts."),
    ] = None
