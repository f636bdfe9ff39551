"""Scrapes of the metrics at the same time."""

import asyncio

from engine_server.server.api.operation import Scrapes
from engine_server.telemetry.exposition import OPEN_METRICS, TEXT


async def test_simultaneous_scrapes_share_one_text_for_each_format() -> None:
    scrapes = Scrapes()
    texts = await asyncio.gather(*(scrapes.text(TEXT) for _ in range(50)), scrapes.text(OPEN_METRICS))
    assert len({id(text) for text in texts}) == 2
    assert texts[-1].endswith(b"# EOF\n")
    assert await scrapes.text(TEXT) is not texts[0]


async def test_cancelled_scrape_leaves_the_others() -> None:
    scrapes = Scrapes()
    cancelled, other = (asyncio.create_task(scrapes.text(TEXT)) for _ in range(2))
    await asyncio.sleep(0)
    cancelled.cancel()
    assert await other
    assert cancelled.cancelled()
