"""A rank beside the first: `python -m engine_server.engine.core.worker RANK FOLDER LIFELINE`, by `FirstRank`."""

import pkgutil
import sys
from collections.abc import Callable

from engine_server import child

RANK = int(sys.argv[1])


def serve(folder: str, fail: Callable[[str], None]) -> None:
    """Do as the first rank does."""
    from engine_server.engine.core.model_loader import choose_device
    from engine_server.engine.core.workers import orders, read_config
    from engine_server.modeling.ranks import Ranks

    config = read_config(folder)
    ranks = Ranks(RANK, config.parallel_config.tensor_parallel_size)
    ranks.join(folder, choose_device(config.device_config, RANK, ranks.size))
    runner = pkgutil.resolve_name(config.parallel_config.worker_cls)(config, ranks)
    for method, args in orders(folder, RANK):
        getattr(runner, method)(*args)


if __name__ == "__main__":
    child.run(f"rank {RANK}", serve)
