"""The resources of this machine: cores, GPUs and ports."""

import os
import shutil
import subprocess
import sys

from engine_server.contract.base.listening import listen_on

HOST = "127.0.0.1"


def cores() -> int:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def visible_gpus(chosen: str | None) -> list[str]:
    """Return the GPUs that CUDA would use, where `chosen` is CUDA_VISIBLE_DEVICES. This asks the driver, not torch."""
    if chosen is not None:
        return [gpu for gpu in chosen.split(",") if gpu and gpu != "-1"]
    if (smi := shutil.which("nvidia-smi")) is None:
        return []
    listed = subprocess.run([smi, "--list-gpus"], capture_output=True, text=True).stdout
    return [str(index) for index, line in enumerate(listed.splitlines()) if line.startswith("GPU ")]


def free_port(host: str, wanted: int) -> int:
    """Return `wanted`, or a free port for 0. Raises ListenError."""
    with listen_on(host, wanted) as listener:
        port: int = listener.getsockname()[1]
        return port
