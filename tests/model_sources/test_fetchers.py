"""The table of what fetches."""

from engine_server.contract.cluster.model_uri import FETCHED
from engine_server.model_sources.fetchers import FETCHERS


def test_each_source_that_is_fetched_has_a_fetcher() -> None:
    assert set(FETCHERS) == set(FETCHED)
