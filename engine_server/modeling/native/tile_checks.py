"""Checks of the kernels that multiply by tiles (AMX), with inputs whose results are known exactly."""

from typing import Any

import torch

# The kernels' numbers of dtypes, as in the library's PRODUCT_DTYPES: the library imports this module.
FLOAT32, BFLOAT16 = 0, 1


def computes_rightly(kernels: Any) -> bool:
    """Return True if a library's products and attention by tiles have the right results."""
    return all(check(kernels) for check in (multiplies_exactly, multiplies_alike, attends_exactly))


def multiplies_exactly(kernels: Any) -> bool:
    """Check a product of bfloat16 whose sums are integers below 256, and so exact in any order."""
    rows, pairs, outputs = 17, 17, 32
    values = (torch.arange(rows * pairs * 2) % 7 - 3).view(rows, pairs, 2).bfloat16()
    weight = (torch.arange(pairs * outputs * 2) % 5 - 2).view(pairs, outputs, 2).bfloat16()
    results = torch.empty(rows, outputs, dtype=torch.bfloat16)
    kernels.multiply_floating(
        BFLOAT16, results.data_ptr(), values.data_ptr(), 2 * pairs, weight.data_ptr(), None, rows, 2 * pairs, outputs,
    )  # fmt: skip
    return torch.equal(results.float(), torch.einsum("rpi,poi->ro", values.float(), weight.float()))


def multiplies_alike(kernels: Any) -> bool:
    """Check that 16 rows, which tiles multiply, and single ones have the same bits with 4-bit weights."""
    rows, inputs, outputs, group = 16, 64, 32, 32
    values = (torch.arange(rows * inputs) % 13 - 6.0).view(rows, inputs)
    codes = (torch.arange(inputs * outputs // 2) * 37 % 256).to(torch.uint8)
    scales = (torch.arange(inputs // group * outputs) % 5 + 1).half()

    def product(of: torch.Tensor) -> torch.Tensor:
        results = torch.empty(len(of), outputs)
        kernels.multiply_integer(
            FLOAT32, results.data_ptr(), of.data_ptr(), inputs, codes.data_ptr(), scales.data_ptr(), None, None,
            len(of), inputs, outputs, group, 4, 1.0,
        )  # fmt: skip
        return results

    return torch.equal(product(values), torch.cat([product(row[None]) for row in values]))


def attends_exactly(kernels: Any) -> bool:
    """Check attention over bfloat16 in which all of a query's weight is one token's, whose value is the result."""
    tokens, dim, block_size = 34, 48, 16
    keys = 16 * torch.eye(tokens, dim).bfloat16()
    values = (torch.arange(tokens * dim) % 251).view(tokens, dim).bfloat16()
    # Of the tokens up to its own: for even ones itself.
    own = torch.arange(tokens)
    chosen = torch.where(own % 2 == 0, own, own // 2)
    query, results = keys[chosen], torch.empty(tokens, dim, dtype=torch.bfloat16)
    table = torch.tensor([2, 0, 1], dtype=torch.int32)
    slots = table[own // block_size].long() * block_size + own % block_size
    # What no token is written to may be anything.
    cache = torch.full((2, len(table), block_size, dim), torch.nan, dtype=torch.bfloat16)
    cached = (cache[0].data_ptr(), None, cache[1].data_ptr(), None)
    kernels.write_cache(
        BFLOAT16, 0, *cached, keys.data_ptr(), dim, dim, values.data_ptr(), dim, dim, slots.data_ptr(), tokens, 1, dim,
        dim, block_size,
    )  # fmt: skip
    sequence = torch.tensor([[0, 0, tokens, tokens]], dtype=torch.int32)
    kernels.attention(
        BFLOAT16, 0, results.data_ptr(), query.data_ptr(), dim, dim, *cached, table.data_ptr(), len(table),
        sequence.data_ptr(), 1, 1, 1, dim, dim, block_size, True, 0, False, 1.0, 0.0, None, None,
    )  # fmt: skip
    return torch.equal(results, values[chosen])
