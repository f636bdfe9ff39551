"""Distribution of tests over the workers of pytest-xdist, and their order."""

from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

# Prefixes of test paths. A group shares fixtures that are slow to start. The longest groups run first, and those that
# mostly wait run before those that compute, so that both overlap.
GROUPS = (
    ("tests/server/api/",),
    ("tests/server/",),
    (
        "tests/operator/control/",
        "tests/operator/api/test_crd.py",
        "tests/router/sources/kubernetes/test_source.py",
    ),
    ("tests/local/",),
    ("tests/models/",),
    ("tests/modeling/test_equality.py",),
    ("tests/engine/test_async_llm.py", "tests/engine/test_pause.py", "tests/engine/test_deadlines.py"),
)


def group_index(nodeid: str) -> int:
    """Return the index of the test's group, or the number of groups for a test without one."""
    return next((index for index, group in enumerate(GROUPS) if nodeid.startswith(group)), len(GROUPS))


class Groups(LoadScopeScheduling):
    """Scheduling by group, or by file for tests without a group."""

    def _split_scope(self, nodeid: str) -> str:
        return (*(group[0] for group in GROUPS), nodeid.partition("::")[0])[group_index(nodeid)]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    return Groups(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: group_index(item.nodeid))
