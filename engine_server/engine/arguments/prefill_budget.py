"""The token budget of a step on a CPU, so that a long prompt doesn't stall other requests' tokens."""

from pathlib import Path

# Duration of a step in seconds, the longest gap that a prompt may cause between another request's tokens.
STEP_SECONDS = 0.3
# Multiplications and additions per second that a step reaches on one CPU, measured with SmolLM2 on an EPYC with
# AVX-512: 138e9 in bfloat16, half of that in float32; less a margin for other CPUs.
HALF_PRECISION_FLOPS = 100e9
FLOAT32_FLOPS = 50e9
# Below the lower bound a step's fixed costs dominate; above the upper bound throughput no longer grows.
SMALLEST, LARGEST = 64, 2048
CPU_INFO = Path("/proc/cpuinfo")
# Flags in /proc/cpuinfo, on x86 and on ARM.
INSTRUCTIONS = {
    "bfloat16": ("avx512_bf16", "amx_bf16", " bf16"),
    "float16": ("avx512_fp16", "amx_fp16", "asimdhp"),
}


def cpu_budget(weights_per_token: int, half_precision: bool, cpus: float) -> int:
    """Return a multiple of 64 tokens that one step computes in about STEP_SECONDS.

    weights_per_token: weights that a token is multiplied with. half_precision: the CPU computes in 16 bits.
    """
    flops = HALF_PRECISION_FLOPS if half_precision else FLOAT32_FLOPS
    tokens = int(STEP_SECONDS * flops * cpus / (2 * max(1, weights_per_token)))
    return max(SMALLEST, min(LARGEST, tokens // 64 * 64))


def multiplies_in_half_precision(dtype: str) -> bool:
    """Return True if this machine's CPU has instructions for products in `dtype`, torch's name of a type."""
    if dtype not in INSTRUCTIONS or not CPU_INFO.is_file():
        return False
    flags = CPU_INFO.read_text()
    return any(name in flags for name in INSTRUCTIONS[dtype])
