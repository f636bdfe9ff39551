"""The key in a request's field `Authorization`."""

SCHEME = b"bearer "


def bearer_key(authorization: bytes) -> bytes | None:
    """Return KEY of `Bearer KEY`, in any case and with any blanks around the key; None for another scheme."""
    if authorization[: len(SCHEME)].lower() != SCHEME:
        return None
    return authorization[len(SCHEME) :].strip()
