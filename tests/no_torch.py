"""A pytest plugin under which importing torch fails in the test process: its workers start in a second without."""

import sys

sys.modules["torch"] = None  # type: ignore[assignment]  # Python's way of forbidding an import
