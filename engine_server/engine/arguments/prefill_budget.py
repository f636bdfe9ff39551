"""The token budget of a step on a CPU, so that a long prompt doesn't stall other requests' tokens."""

import os
from pathlib import Path

# A step of this many seconds is the longest gap that a prompt may cause between another request's tokens.
STEP_SECONDS = 0.3
# Multiplications and additions per second that a step reaches for each CPU, in float32 with AVX2.
FLOPS_PER_CPU = 40e9
# Below this a step's fixed costs dominate; beyond the upper bound larger steps bring no more throughput.
SMALLEST, LARGEST = 64, 2048
CPU_MAX = Path("/sys/fs/cgroup/cpu.max")


def cpu_budget(weights_per_token: int, cpus: float | None = None) -> int:
    """Return a multiple of 64 tokens that one step computes in about STEP_SECONDS.

    weights_per_token: weights that a token is multiplied with. cpus: None: those that this process may use.
    """
    flops = STEP_SECONDS * FLOPS_PER_CPU * (available_cpus() if cpus is None else cpus)
    tokens = int(flops / (2 * max(1, weights_per_token)))
    return max(SMALLEST, min(LARGEST, tokens // 64 * 64))


def available_cpus() -> float:
    """Return the number of CPUs that affinity and the cgroup's quota leave to this process."""
    count = float(len(os.sched_getaffinity(0)))
    try:
        quota, period = CPU_MAX.read_text().split()
    except (OSError, ValueError):
        return count
    return count if quota == "max" else min(count, int(quota) / int(period))
