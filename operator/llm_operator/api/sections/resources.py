"""The resources of a replica."""

from typing import Annotated

from msgspec import Meta

from llm_operator.api.schema import INT_OR_STRING, Count, Section, about

# Longer quantities overflow. 2**53 is the largest bound that a CRD, whose numbers are doubles, has exactly.
LONGEST_QUANTITY = 32
Cpu = Annotated[str, Meta(pattern=r"^[0-9]+(\.[0-9]+)?m?$", max_length=LONGEST_QUANTITY)]
Memory = Annotated[
    str,
    Meta(pattern=r"^[0-9]+(\.[0-9]+)?(k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$", max_length=LONGEST_QUANTITY),
]
Whole = Annotated[int, Meta(ge=0, le=2**53)]


DEFAULT_GPU_RESOURCE = "nvidia.com/gpu"
# The name of an extended resource.
ExtendedResource = Annotated[
    str,
    Meta(
        pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$",
        max_length=253,
    ),
]


class Resources(Section, frozen=True):
    gpu: Annotated[
        Count | None,
        about(
            "GPUs for each replica; 0, the default, is a CPU pod. With more than one the model is split over them."
        ),
    ] = None
    gpu_resource: Annotated[
        ExtendedResource | None,
        about(
            "The name under which nodes offer the GPUs, such as amd.com/gpu or nvidia.com/mig-1g.10gb; by default"
            " nvidia.com/gpu. Pods tolerate the taint of that name, and of VENDOR/gpu."
        ),
    ] = None
    cpu: Annotated[
        Whole | Cpu | None,
        Meta(extra_json_schema=INT_OR_STRING),
        about(
            "CPU request of each replica in cores, such as 4 or 500m; there is no CPU limit, and by default no"
            " request. Without GPUs the engine uses that many threads, rounded up."
        ),
    ] = None
    memory: Annotated[
        Whole | Memory | None,
        Meta(extra_json_schema=INT_OR_STRING),
        about(
            "Memory request and limit of each replica, such as 16Gi; by default none. It must hold the weights of a"
            " CPU engine, and /dev/shm."
        ),
    ] = None
    shm: Annotated[
        Whole | Memory | None,
        Meta(extra_json_schema=INT_OR_STRING),
        about(
            "Size limit of /dev/shm, such as 1Gi, which counts as memory; by default the limit is the pod's memory."
        ),
    ] = None
    disk: Annotated[
        Whole | Memory | None,
        Meta(extra_json_schema=INT_OR_STRING),
        about(
            "Ephemeral storage request and limit of each replica, such as 40Gi, and the size limit of the volume into"
            " which the model is fetched; by default none. It must hold the model."
        ),
    ] = None

    @property
    def gpus(self) -> int:
        return self.gpu or 0
