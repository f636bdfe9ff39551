"""Quantities of Kubernetes, such as 200Gi."""

import re
from decimal import Decimal

FACTORS: dict[str, int | Decimal] = {
    "": 1, "m": Decimal("0.001"), "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18,
    "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60,
}  # fmt: skip
QUANTITY = re.compile(r"([0-9.]+)([A-Za-z]*)")


def amount(quantity: str) -> Decimal:
    """Return the amount that a quantity without an exponent denotes."""
    match = QUANTITY.fullmatch(quantity)
    if match is None or match[2] not in FACTORS:
        raise ValueError(f"{quantity} is not a quantity")
    return Decimal(match[1]) * FACTORS[match[2]]
