"""The words of a download's progress, in logs and in conditions."""

UNITS = ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB"))


def downloaded(done: int, total: int) -> str:
    """Return the percentage and the bytes of a download; total: 0 if it is unknown."""
    if not total:
        return f"{amount(done)} are downloaded"
    percent = min(100, 100 * done // total)
    return f"{percent} %: {amount(done)} of {amount(total)} are downloaded"


def amount(count: int) -> str:
    """Return a number of bytes in the largest unit that fits."""
    for size, unit in UNITS:
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"
