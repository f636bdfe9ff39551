"""The limit of open files."""

import subprocess
import sys

CODE = """
import resource
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))
from engine_server.contract.open_files import raise_open_files_limit
raise_open_files_limit()
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
assert soft == hard > 200, (soft, hard)
"""


def test_soft_limit_of_open_files_is_raised_to_the_hard_limit() -> None:
    subprocess.run([sys.executable, "-c", CODE], check=True)
