"""Settings of model parallelism."""

import msgspec


class ParallelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The ranks that share a model."""

    tensor_parallel_size: int = 1
    # Import path of the class that executes the model.
    worker_cls: str = "engine_server.core.model_runner:ModelRunner"
