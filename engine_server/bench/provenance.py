"""What a saved measurement says of its origin."""

import os
import platform
import shlex
import sysconfig
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from engine_server.contract.base.version import VERSION

PACKAGES = ("torch", "triton", "transformers", "vllm")


def provenance(*command: str) -> dict[str, Any]:
    """Return the date, command, machine, versions and interpreter's build of a measurement."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(command),
        "machine": {
            "cpu": processor(),
            "cores": os.cpu_count(),
            "load": os.getloadavg(),
            "system": f"{platform.system()} {platform.release()}",
        },
        "versions": {"python": platform.python_version(), "fairlead": VERSION, **installed()},
        "interpreter": {"pgo": built_with_pgo(), "configured": configure_arguments()},
    }


def processor() -> str:
    """Return the processor's model name, or its architecture where the system doesn't report one."""
    try:
        listed = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        listed = []
    names = [entry.partition(":")[2].strip() for entry in listed if entry.startswith("model name")]
    return names[0] if names else platform.machine()


def installed() -> dict[str, str]:
    """Return the versions of the packages installed here, where the client runs."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def built_with_pgo() -> bool:
    """Return whether this interpreter was configured to be optimised with profiles of its execution."""
    return "--enable-optimizations" in shlex.split(configure_arguments())


def configure_arguments() -> str:
    """Return the arguments that this interpreter's build was configured with, quoted for a shell."""
    return sysconfig.get_config_var("CONFIG_ARGS") or ""
