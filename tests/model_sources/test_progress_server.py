"""The report of a fetch's progress."""

import json
from urllib.request import urlopen

from loopbacks import both_families

from engine_server.contract.base.authority import authority
from engine_server.contract.cluster.fetch_container import PROGRESS_PATH
from engine_server.model_sources.progress import Progress
from engine_server.model_sources.progress_server import serve


@both_families
def test_progress_is_reported_on_the_addresses_of_both_families(loopback: str) -> None:
    progress = Progress()
    progress.total = 5
    server = serve(progress, 0)
    try:
        with urlopen(f"http://{authority(loopback, server.server_address[1])}{PROGRESS_PATH}") as answer:
            assert json.load(answer) == {"done": 0, "total": 5}
    finally:
        server.shutdown()
        server.server_close()
