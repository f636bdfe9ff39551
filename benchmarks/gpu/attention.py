"""The attention kernels alone, compared with torch's attention.

    python -m benchmarks.gpu.attention DIM

tries launch settings for heads of that size and prints the best ones, for the tables in
engine_server/modeling/kernels/launch.py. Decode and writes are held to a copy's bandwidth (what is read and written),
prefill to a product of bf16 matrices. torch's attention gets K and V in one piece, as they would lie without a paged
cache.
"""

import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
import triton
from torch import Tensor

from benchmarks.gpu.limits import CALLS, DEVICE, DTYPE, Limits, rotated, seconds
from benchmarks.gpu.report import Row, beside
from benchmarks.gpu.shapes import SHAPES
from engine_server.modeling.cache.layout import Pages
from engine_server.modeling.cache.quantised import quantised
from engine_server.modeling.heads.scoring import Scoring
from engine_server.modeling.kernels import launch
from engine_server.modeling.kernels.attention import decode, prefill
from engine_server.modeling.kernels.cache_write import write_cache
from engine_server.modeling.kernels.work_list import plan_work, spare_chunks

BLOCK_SIZE = 16


class Heads(NamedTuple):
    query: int
    kv: int
    dim: int


MODELS = {
    name: Heads(shape["num_attention_heads"], shape["num_key_value_heads"], shape["head_dim"])
    for name, shape in SHAPES.items()
} | {"Gemma-3-4B": Heads(8, 4, 256)}
DECODES = ((1, 1024), (64, 1024), (16, 16384), (256, 1024))  # sequences, context
PREFILLS = ((1, 8192, 8192), (4, 512, 8192))  # sequences, tokens in the step, context
WRITTEN = 8192  # tokens


class Batch(NamedTuple):
    """Sequences of one length, in randomly placed blocks of the paged cache and as contiguous tensors."""

    query: Tensor  # [T, query heads, dim]
    out: Tensor
    keys: Pages
    values: Pages
    block_ids: Tensor
    sequences: Tensor
    plain: list[Tensor]  # query, keys, values; each [sequences, heads, tokens, dim]


def make_batch(heads: Heads, count: int, tokens: int, context: int, float8: bool = False) -> Batch:
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
    key_pages, value_pages = (
        Pages(*quantised(cache)) if float8 else Pages(cache) for cache in (keys, values)
    )
    contiguous = [t.contiguous() for t in plain]
    return Batch(query, torch.empty_like(query), key_pages, value_pages, ids, sequences, contiguous)


def ours(batch: Batch) -> Callable[[], object]:
    """Return the launch that the engine would make for the batch."""
    given = batch.query, batch.keys, batch.values, batch.block_ids, batch.sequences
    scoring = Scoring(batch.query.shape[-1] ** -0.5)
    if len(batch.query) > len(batch.sequences):
        return lambda: prefill(batch.out, *given, scoring)
    processors = torch.cuda.get_device_properties(DEVICE).multi_processor_count
    kv_heads = batch.keys.data.shape[2]
    work = plan_work(batch.sequences, None, kv_heads, spare_chunks(kv_heads, processors))
    return lambda: decode(batch.out, *given, scoring, work)


def theirs(batch: Batch) -> Callable[[], Tensor]:
    """Return torch's attention; a chunk after a prefix needs a mask: torch's causal mask starts at the first key."""
    query, keys, values = batch.plain
    tokens, context = query.shape[2], keys.shape[2]
    mask = None
    if 1 < tokens < context:
        mask = torch.ones(tokens, context, dtype=torch.bool, device=DEVICE).tril(context - tokens)
    causal = tokens == context
    return lambda: F.scaled_dot_product_attention(
        query, keys, values, attn_mask=mask, is_causal=causal, enable_gqa=True
    )


def compare(name: str, batches: Sequence[Batch], floor: float, limit: str) -> Row:
    own, other = (seconds([attend(batch) for batch in batches]) for attend in (ours, theirs))
    batch = batches[0]
    expected = theirs(batch)().transpose(1, 2).flatten(0, 1)
    return beside(name, own, other, floor, limit, (batch.out - expected).abs().max().item())


def measure(limits: Limits) -> Iterator[Row]:
    for model, heads in MODELS.items():
        yield from measure_decode(model, heads, limits)
        yield from measure_prefill(model, heads, limits)
        yield measure_write(f"write {model} {WRITTEN}", heads, WRITTEN, limits)


def measure_decode(model: str, heads: Heads, limits: Limits) -> Iterator[Row]:
    for (count, context), float8 in [*((size, False) for size in DECODES), (DECODES[-1], True)]:
        batches = [make_batch(heads, count, 1, context, float8)]
        pages = batches[0].keys, batches[0].values
        cached = sum(part.nbytes for page in pages for part in page if part is not None)
        batches += [make_batch(heads, count, 1, context, float8) for _ in range(rotated(cached) - 1)]
        name = f"decode {model} {count} x {context}" + ", float8" * float8
        yield compare(name, batches, cached / limits.copy, "bandwidth")


def measure_prefill(model: str, heads: Heads, limits: Limits) -> Iterator[Row]:
    for count, tokens, context in PREFILLS:
        seen = tokens * (context - tokens) + tokens * (tokens + 1) // 2
        floor = 4 * count * seen * heads.query * heads.dim / limits.matmul
        batch = make_batch(heads, count, tokens, context)
        yield compare(f"prefill {model} {count} x {tokens} of {context}", [batch], floor, "matmul")


def measure_write(name: str, heads: Heads, tokens: int, limits: Limits) -> Row:
    """Compare with torch's index_copy_ of K and of V."""
    writes = [make_write(heads, tokens) for _ in range(CALLS)]
    own = seconds([write.ours for write in writes])
    other = 2 * seconds([write.theirs for write in writes])
    new, keys, values, expected, *_ = writes[0]
    error = max((cache - expected).abs().max().item() for cache in (keys, values))
    return beside(name, own, other, 4 * new.nbytes / limits.copy, "bandwidth", error)


class Write(NamedTuple):
    """Keys and values of one step, and where they are written."""

    new: Tensor  # [tokens, KV heads, dim]: the keys, and the values too
    keys: Tensor  # [blocks, BLOCK_SIZE, KV heads, dim]
    values: Tensor
    expected: Tensor  # what both are afterwards
    slots: Tensor  # int32
    long_slots: Tensor

    def ours(self) -> None:
        write_cache(Pages(self.keys), Pages(self.values), self.new, self.new, self.slots)

    def theirs(self) -> None:
        self.expected.flatten(0, 1).index_copy_(0, self.long_slots, self.new)


def make_write(heads: Heads, tokens: int) -> Write:
    new = torch.randn(tokens, heads.kv, heads.dim, device=DEVICE, dtype=DTYPE)
    keys, values, expected = (
        torch.zeros(tokens // BLOCK_SIZE, BLOCK_SIZE, heads.kv, heads.dim, device=DEVICE, dtype=DTYPE)
        for _ in range(3)
    )
    slots = torch.randperm(tokens, device=DEVICE)
    return Write(new, keys, values, expected, slots.int(), slots)


def tune(dim: int) -> None:
    """Print the best launch settings for heads of `dim`, in the form of the tables."""
    heads = Heads(32, 8, dim)
    for name, tables, batch, rows in (
        ("PREFILL", (launch.PREFILL, launch.HOPPER), make_batch(heads, 2, 4096, 4096), (64, 128)),
        ("DECODE", (launch.DECODE,), make_batch(heads, 64, 1, 4096), (16,)),
        ("DECODE_FLOAT8", (launch.DECODE_FLOAT8,), make_batch(heads, 64, 1, 4096, float8=True), (16,)),
    ):
        found = []
        for settings in itertools.product(rows, (16, 32, 64, 128), (2, 4, 8), (2, 3, 5, 7)):
            chosen = launch.Launch(*settings)
            for table in tables:
                table[dim] = chosen
            try:
                found.append((seconds([ours(batch)]), chosen))
            except (triton.runtime.errors.OutOfResources, triton.runtime.errors.PTXASError):
                continue
        for taken, settings in sorted(found)[:5]:
            print(f"{name} {dim}: {settings} {taken * 1e6:.1f} us")


if __name__ == "__main__":
    tune(int(sys.argv[1]))
