"""What a GPU's own limits are, and what the attention kernels make of them, beside torch's attention.

    PYTHONPATH=. python benchmarks/gpu.py [--tune 128]

Times are the device's alone: the work is replayed from a CUDA graph, with nothing of it left in the L2 cache. Decode
is held against a copy's bandwidth (what is read and written), prefill against a product of bf16 matrices. torch's
attention gets K and V in one piece, as they would lie without a paged cache. --tune tries launch settings for heads of
that size and prints the best ones, for the tables in engine_server/modeling/kernels/launch.py.
"""

import argparse
import itertools
import json
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
import triton
from torch import Tensor

from engine_server.modeling.attention import Pages, Scoring
from engine_server.modeling.kernels import launch
from engine_server.modeling.kernels.attention import decode, prefill
from engine_server.modeling.kernels.cache_write import write_cache

RESULTS = Path(__file__).parent / "results"
DEVICE = torch.device("cuda")
DTYPE = torch.bfloat16
BLOCK_SIZE = 16
REPEATS = 20
L2_BYTES = 256 << 20  # more than any GPU's


class Heads(NamedTuple):
    query: int
    kv: int
    dim: int


MODELS = {
    "Qwen3-0.6B": Heads(16, 8, 128),
    "Llama-3.1-8B": Heads(32, 8, 128),
    "Qwen3-30B-A3B": Heads(32, 4, 128),
    "Gemma-3-4B": Heads(8, 4, 256),
}
DECODES = ((1, 1024), (8, 1024), (64, 1024), (256, 1024), (1, 32768), (16, 16384))  # sequences, context
PREFILLS = ((1, 8192, 8192), (16, 512, 512), (4, 512, 8192))  # sequences, tokens in the step, context


class Limits(NamedTuple):
    copy: float  # bytes a second, read and written
    matmul: float  # operations a second


class Row(NamedTuple):
    name: str
    microseconds: float
    share: float  # of the limit
    torch_microseconds: float
    error: float  # largest difference from torch's attention


class Batch(NamedTuple):
    """Sequences of one length in the paged cache, with their blocks in random places, and the same in one piece."""

    query: Tensor  # [T, query heads, dim]
    out: Tensor
    keys: Tensor  # [blocks, block size, kv heads, dim]
    values: Tensor
    block_ids: Tensor
    sequences: Tensor
    plain: list[Tensor]  # query, keys, values; each [sequences, heads, tokens, dim]


def seconds(work: Callable[[], object]) -> float:
    """The median time on the device of what `work` launches."""
    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    flush = torch.empty(L2_BYTES, dtype=torch.int8, device=DEVICE)
    marks = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(REPEATS)]
    for begin, end in marks:
        flush.zero_()
        begin.record()
        graph.replay()
        end.record()
    torch.cuda.synchronize()
    return median(begin.elapsed_time(end) for begin, end in marks) / 1e3


def measure_limits(megabytes: int = 2048, size: int = 8192) -> Limits:
    source = torch.empty(megabytes << 20, dtype=torch.int8, device=DEVICE)
    target = torch.empty_like(source)
    left, right = (torch.randn(size, size, device=DEVICE, dtype=DTYPE) for _ in range(2))
    return Limits(
        2 * source.numel() / seconds(lambda: target.copy_(source)),
        2 * size**3 / seconds(lambda: left @ right),
    )


def make_batch(heads: Heads, count: int, tokens: int, context: int) -> Batch:
    blocks = -(-context // BLOCK_SIZE)
    ids = torch.randperm(count * blocks, device=DEVICE).int().view(count, blocks)
    keys, values = (
        torch.randn(count * blocks, BLOCK_SIZE, heads.kv, heads.dim, device=DEVICE, dtype=DTYPE)
        for _ in range(2)
    )
    query = torch.randn(count * tokens, heads.query, heads.dim, device=DEVICE, dtype=DTYPE)
    pieces = (cache[ids.long()].flatten(1, 2)[:, :context].transpose(1, 2) for cache in (keys, values))
    rows = [[number, number * tokens, tokens, context] for number in range(count)]
    sequences = torch.tensor(rows, dtype=torch.int32, device=DEVICE)
    plain = query.view(count, tokens, heads.query, -1).transpose(1, 2), *pieces
    return Batch(
        query, torch.empty_like(query), keys, values, ids, sequences, [t.contiguous() for t in plain]
    )


def ours(batch: Batch) -> Callable[[], object]:
    """The kernel that the engine would launch for the batch."""
    given = batch.query, Pages(batch.keys), Pages(batch.values), batch.block_ids, batch.sequences
    scoring = Scoring(batch.query.shape[-1] ** -0.5)
    if len(batch.query) > len(batch.sequences):
        return lambda: prefill(batch.out, *given, scoring)
    processors = torch.cuda.get_device_properties(DEVICE).multi_processor_count
    context = batch.plain[1].shape[2]
    splits = launch.num_splits(len(batch.sequences) * batch.keys.shape[2], context, processors)
    return lambda: decode(batch.out, *given, scoring, splits)


def theirs(batch: Batch) -> Callable[[], Tensor]:
    """torch's attention; a chunk after a prefix needs a mask, since torch's causal one begins at the first key."""
    query, keys, _ = batch.plain
    tokens, context = query.shape[2], keys.shape[2]
    mask = None
    if 1 < tokens < context:
        mask = torch.ones(tokens, context, dtype=torch.bool, device=DEVICE).tril(context - tokens)
    causal = tokens == context
    return lambda: F.scaled_dot_product_attention(
        *batch.plain, attn_mask=mask, is_causal=causal, enable_gqa=True
    )


def compare(name: str, batch: Batch, limit: float, amount: float) -> Row:
    """`amount` of bytes or operations is what the work can't do without; `limit` is how many a second there can be."""
    own, other = seconds(ours(batch)), seconds(theirs(batch))
    expected = theirs(batch)().transpose(1, 2).flatten(0, 1)
    error = (batch.out - expected).abs().max().item()
    return Row(name, own * 1e6, amount / own / limit, other * 1e6, error)


def measure_decode(limits: Limits) -> Iterator[Row]:
    for (model, heads), (count, context) in itertools.product(MODELS.items(), DECODES):
        batch = make_batch(heads, count, 1, context)
        amount = batch.keys.nbytes + batch.values.nbytes
        yield compare(f"decode {model} {count} x {context}", batch, limits.copy, amount)


def measure_prefill(limits: Limits) -> Iterator[Row]:
    for (model, heads), (count, tokens, context) in itertools.product(MODELS.items(), PREFILLS):
        seen = tokens * (context - tokens) + tokens * (tokens + 1) // 2
        amount = 4 * count * seen * heads.query * heads.dim
        batch = make_batch(heads, count, tokens, context)
        yield compare(f"prefill {model} {count} x {tokens} of {context}", batch, limits.matmul, amount)


def measure_writes(limits: Limits) -> Iterator[Row]:
    for (model, heads), tokens in itertools.product(MODELS.items(), (256, 8192)):
        yield measure_write(f"write {model} {tokens}", limits, heads, tokens)


def measure_write(name: str, limits: Limits, heads: Heads, tokens: int) -> Row:
    """Beside torch's index_copy_, of K and then of V."""
    new = torch.randn(tokens, heads.kv, heads.dim, device=DEVICE, dtype=DTYPE)
    slots = torch.randperm(tokens, device=DEVICE)
    small = slots.int()
    keys, values, expected = (
        torch.zeros(tokens // BLOCK_SIZE, BLOCK_SIZE, heads.kv, heads.dim, device=DEVICE, dtype=DTYPE)
        for _ in range(3)
    )
    own = seconds(lambda: write_cache(Pages(keys), Pages(values), new, new, small))
    other = 2 * seconds(lambda: expected.flatten(0, 1).index_copy_(0, slots, new))
    error = max((cache - expected).abs().max().item() for cache in (keys, values))
    return Row(name, own * 1e6, 4 * new.nbytes / own / limits.copy, other * 1e6, error)


def tune(dim: int) -> None:
    """Print the best launch settings for heads of `dim`, as the tables have them."""
    heads = Heads(32, 8, dim)
    for name, table, batch, rows in (
        ("PREFILL", launch.PREFILL, make_batch(heads, 2, 4096, 4096), (64, 128)),
        ("DECODE", launch.DECODE, make_batch(heads, 64, 1, 4096), (16,)),
    ):
        found = []
        for settings in itertools.product(rows, (16, 32, 64, 128), (2, 4, 8), (2, 3, 4)):
            table[dim] = launch.Launch(*settings)
            try:
                found.append((seconds(ours(batch)), table[dim]))
            except (triton.runtime.errors.OutOfResources, triton.runtime.errors.PTXASError):
                continue
        for taken, settings in sorted(found)[:5]:
            print(f"{name} {dim}: {settings} {taken * 1e6:.1f} us")


def main() -> int:
    parser = argparse.ArgumentParser(description="Attention kernels against the GPU's limits and torch.")
    parser.add_argument(
        "--tune", type=int, metavar="DIM", choices=launch.PREFILL, help="find launch settings"
    )
    flags = parser.parse_args()
    if flags.tune is not None:
        tune(flags.tune)
        return 0
    limits = measure_limits()
    print(f"copy {limits.copy / 1e12:.2f} TB/s, bf16 product {limits.matmul / 1e12:.0f} TFLOP/s\n")
    print(f"{'':44}{'us':>10}{'of limit':>10}{'torch us':>10}{'error':>10}")
    rows = []
    for row in itertools.chain(measure_writes(limits), measure_decode(limits), measure_prefill(limits)):
        print(
            f"{row.name:44}{row.microseconds:10.1f}{row.share:10.1%}{row.torch_microseconds:10.1f}{row.error:10.1e}"
        )
        rows.append(row)
    print(f"\nsaved {save(limits, rows)}")
    return 0


def save(limits: Limits, rows: list[Row]) -> Path:
    result: dict[str, Any] = {
        "date": datetime.now(UTC).date().isoformat(),
        "device": torch.cuda.get_device_name(DEVICE),
        "versions": {"torch": torch.__version__, "triton": triton.__version__},
        "limits": limits._asdict(),
        "rows": [row._asdict() for row in rows],
    }
    RESULTS.mkdir(exist_ok=True)
    file = RESULTS / "gpu.json"
    file.write_text(json.dumps(result, indent=2) + "\n")
    return file


if __name__ == "__main__":
    sys.exit(main())
