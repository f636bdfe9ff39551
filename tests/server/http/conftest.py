from collections.abc import Iterator

import pytest
from http_service import Service, serving


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with serving() as service:
        yield service
