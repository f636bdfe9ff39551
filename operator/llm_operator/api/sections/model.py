"""The model that an LLMDeployment serves."""

from typing import Annotated

from msgspec import Meta

from llm_operator.api import rules
from llm_operator.api.schema import LIST_TYPE, NOT_IN_PODS, Name, Section, about, ruled
from llm_operator.api.sections.cache import Cache


class SecretRef(Section, frozen=True):
    name: Annotated[
        Name,
        about(
            "The name of a Secret in the same namespace. For a hub its key `token` is the token; for s3:// its keys are"
            " AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_REGION and AWS_ENDPOINT_URL."
        ),
    ]


class Model(Section, frozen=True):
    uri: Annotated[
        str,
        Meta(min_length=1, max_length=1024),
        ruled(rules.MODEL_URI),
        about(
            "The model: hf://ORG/NAME[/FILE.gguf][@REVISION] (or ORG/NAME), pypi://PACKAGE, pvc://CLAIM[/PATH], s3://BUCKET/PATH,"
            " or a path in the image that begins with /, ./, ../ or ~/."
        ),
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
