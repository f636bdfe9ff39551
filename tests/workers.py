"""What runs together in one worker of pytest-xdist, and what runs first."""

from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

# How paths begin. A group shares what is slow to start. The longest come first, and those that rather wait than compute
# before those that keep a core busy, so that the end is not all waiting.
GROUPS = (
    ("tests/server/",),
    ("tests/operator/control/", "tests/operator/api/test_crd.py", "tests/router/test_kubernetes.py"),
    ("tests/local/",),
    ("tests/models/",),
    ("tests/modeling/test_equality.py",),
)


def place(nodeid: str) -> int:
    """The group's, or the one after all groups."""
    return next((place for place, group in enumerate(GROUPS) if nodeid.startswith(group)), len(GROUPS))


class Groups(LoadScopeScheduling):
    """A worker takes a whole group, or a whole file of no group."""

    def _split_scope(self, nodeid: str) -> str:
        return (*(group[0] for group in GROUPS), nodeid.partition("::")[0])[place(nodeid)]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    return Groups(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: place(item.nodeid))
