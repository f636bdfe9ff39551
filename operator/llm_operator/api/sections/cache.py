"""The volume that keeps a downloaded model."""

from typing import Annotated, Literal

import msgspec

from llm_operator.api.schema import NOT_IN_PODS, Name, Section, about
from llm_operator.api.sections.resources import Memory

AccessMode = Literal["ReadWriteOnce", "ReadWriteMany"]


class Cache(Section, frozen=True):
    claim: Annotated[
        Name | None,
        about(
            "A PersistentVolumeClaim of yours for the model. It is never deleted, and may hold several models."
        ),
    ] = None
    size: Annotated[
        Memory | None,
        NOT_IN_PODS,
        about("The size of a PersistentVolumeClaim that is created for the model, such as 200Gi."),
    ] = None
    class_: Annotated[
        Name | None, about("The StorageClass of the created claim; the cluster's default by default.")
    ] = msgspec.field(default=None, name="class")
    access_mode: Annotated[
        AccessMode | None,
        about(
            "The access mode of the created claim: ReadWriteMany, the default, or ReadWriteOnce, with which all"
            " replicas run on one node."
        ),
    ] = None
