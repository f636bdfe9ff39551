"""The check that Triton compiles kernels for a GPU of this machine, and runs them."""

from pathlib import Path
from subprocess import CalledProcessError

import torch


def check_triton(device: torch.device) -> None:
    """Compile one of our kernels and run it on a GPU. Raises the error of whatever fails.

    It takes Triton and its assembler, which torch's CUDA builds include, and a C compiler and Python's headers, which
    they don't. What was compiled once is cached, and needs neither.
    """
    from triton.runtime import driver

    from engine_server.modeling.kernels.norm import rms_norm

    _ = driver.active  # compiles Triton's own extension module
    with torch.cuda.device(device):
        rms_norm(torch.ones(1, 64, device=device), torch.ones(64, device=device), 1e-6)
        torch.cuda.synchronize()


def reason(error: Exception) -> str:
    """Return why the check failed, in the error's own words. Those of a C compiler are on standard error already."""
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, CalledProcessError):
        folders = [str(part).removeprefix("-I") for part in error.cmd if str(part).startswith("-I")]
        if folders and not any(Path(folder, "Python.h").exists() for folder in folders):
            text += f" There is no Python.h in {', '.join(folders)}"
    return text
