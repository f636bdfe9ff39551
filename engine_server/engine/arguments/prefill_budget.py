"""The token budget of a step on a CPU, so that a long prompt doesn't stall other requests' tokens."""

from pathlib import Path

# A step of this many seconds is the longest gap that a prompt may cause between another request's tokens.
STEP_SECONDS = 0.3
# Operations per second that a prefill step reaches on one CPU without special instructions, less a margin: SmolLM2 in
# float32 reaches 72e9 on an EPYC.
FLOAT32_FLOPS = 50e9
# The same with instructions for 16-bit products, by their flags in /proc/cpuinfo on x86 and Arm; the fastest first.
# SmolLM2 in bfloat16 reaches 457e9 on a Xeon with AMX and 138e9 on an EPYC with AVX-512.
HALF_PRECISION_FLOPS = {
    "bfloat16": {"amx_bf16": 300e9, "avx512_bf16": 100e9, " bf16": 100e9},
    "float16": {"amx_fp16": 300e9, "avx512_fp16": 100e9, "asimdhp": 100e9},
}
# Below this a step's fixed costs dominate; beyond the upper bound larger steps bring no more throughput.
SMALLEST, LARGEST = 64, 2048
CPU_INFO = Path("/proc/cpuinfo")


def cpu_budget(weights_per_token: int, flops: float, cpus: float) -> int:
    """Return a multiple of 64 tokens that one step computes in about STEP_SECONDS.

    weights_per_token: weights that a token is multiplied with. flops: operations per second of one CPU.
    """
    tokens = int(STEP_SECONDS * flops * cpus / (2 * max(1, weights_per_token)))
    return max(SMALLEST, min(LARGEST, tokens // 64 * 64))


def prefill_flops(dtype: str, cpu_info: str | None = None) -> float:
    """Return the operations per second that one CPU reaches in `dtype`, torch's name of a type.

    cpu_info: the text of /proc/cpuinfo; default: this machine's.
    """
    if cpu_info is None:
        cpu_info = CPU_INFO.read_text() if CPU_INFO.is_file() else ""
    rates = HALF_PRECISION_FLOPS.get(dtype, {})
    return next((rate for flag, rate in rates.items() if flag in cpu_info), FLOAT32_FLOPS)
