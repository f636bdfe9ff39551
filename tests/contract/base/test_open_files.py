"""The limit of open files."""

import resource
import subprocess
import sys

from engine_server.contract.base.open_files import most_connections, most_internal_connections

CODE = """
import resource
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))
from engine_server.contract.base.open_files import raise_open_files_limit
raise_open_files_limit()
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
assert soft == hard > 200, (soft, hard)
"""


def test_soft_limit_of_open_files_is_raised_to_the_hard_limit() -> None:
    subprocess.run([sys.executable, "-c", CODE], check=True)


def test_most_open_files_are_for_clients_and_some_are_not() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1000, hard))
    try:
        most = most_connections(5000)
        bounded = most_connections(500)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert most == 800 and bounded == 500
    assert most_internal_connections(most) == 50
