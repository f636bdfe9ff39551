"""A LoRA adapter that the replicas serve besides the model."""

from typing import Annotated

from msgspec import Meta

from engine_server.contract.cluster.model_uri import ADAPTER_FORMS
from llm_operator.api import rules
from llm_operator.api.schema import Name, Section, about, ruled


class Adapter(Section, frozen=True):
    name: Annotated[
        Name, ruled(rules.ADAPTER_NAME), about("The model name by which requests ask for the adapter.")
    ]
    uri: Annotated[
        str,
        Meta(min_length=1, max_length=1024),
        ruled(rules.ADAPTER_URI),
        about(
            f"The folder of the adapter, as PEFT saves it: {ADAPTER_FORMS}, in the pod. A claim is the one that holds"
            " the model."
        ),
    ]
