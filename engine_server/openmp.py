"""The spinning of OpenMP's threads, which compute torch's own operations on a CPU.

A thread of libgomp that waits spins for some milliseconds before it sleeps, on a CPU that other threads then lack:
those of our kernels (modeling/native/threads.h), of the server, and of other processes.
"""

import os
import sys

VARIABLE = "GOMP_SPINCOUNT"
# Some microseconds: about as long as threads wait for each other within one operation.
SPINS = "1000"


def limit_spinning() -> None:
    """Limit spinning unless the user has set it. libgomp reads the variable when torch is imported."""
    if "torch" not in sys.modules:
        os.environ.setdefault(VARIABLE, SPINS)
