"""The keys by which engines recognise the router and the operator.

The key of a deployment is derived from a root key: its engines know only a hash of their own key, with which they can
call neither themselves nor the engines of another deployment.
"""

import hashlib
import hmac
import re

# A line of an engine's key file with a hash in place of a key.
HASH_PATTERN = re.compile(rb"sha256:([0-9a-fA-F]{64})")

# The message of the key for the pages of routers' internal ports. No UID and no NAMESPACE/NAME is equal to it.
INTERNAL_PAGES = "internal pages"


def parse_root_keys(content: bytes) -> tuple[bytes, ...]:
    """Return the root keys of a file, one per line: callers use the first, and engines accept those of all.

    Raises ValueError if there is none.
    """
    keys = tuple(key for line in content.splitlines() if (key := line.strip()))
    if not keys:
        raise ValueError("it has no key")
    return keys


def derive_key(root: bytes, message: str) -> str:
    """Return the key of a deployment: the hexadecimal digits of HMAC-SHA256(root key, message).

    The message is the UID of the LLMDeployment or, without a cluster, its NAMESPACE/NAME.
    """
    return hmac.new(root, message.encode(), "sha256").hexdigest()


def hash_line(key: str) -> str:
    """Return the line of an engine's key file that accepts `key`."""
    return f"sha256:{hashlib.sha256(key.encode()).hexdigest()}"


def parse_key_line(line: bytes) -> bytes:
    """Return the SHA-256 digest of the key that a line of an engine's key file accepts."""
    if found := HASH_PATTERN.fullmatch(line):
        return bytes.fromhex(found[1].decode())
    return hashlib.sha256(line).digest()
