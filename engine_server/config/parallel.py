"""How ranks share a model."""

import msgspec


class ParallelConfig(msgspec.Struct, frozen=True, kw_only=True):
    tensor_parallel_size: int = 1
    worker_cls: str = "engine_server.core.model_runner:ModelRunner"  # what executes the model
