"""Plugins of all tests, and the profiles of property tests."""

import gc
import signal
import sys

import hypothesis

pytest_plugins = ["engines", "api_server", "foreign_folder", "shared_trials"]

# jsonschema compiles its grammar for two seconds when it is imported, and no test checks the format that it is for.
sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]

# Speed is no property of these tests: a machine may be slow, or busy.
# `make test` runs a few examples of each property, `make test TIER=all` many.
for profile, examples in (("default", 25), ("thorough", 200)):
    hypothesis.settings.register_profile(
        profile,
        max_examples=examples,
        deadline=None,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
    )
hypothesis.settings.load_profile("default")

# nohup, and a script's `&`, leave SIGINT ignored; the processes that tests interrupt would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Spare the garbage collector what was imported and collected, and stays until the end."""
    gc.freeze()
