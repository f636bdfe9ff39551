"""The keys file: the callers that may use models, with their limits. It holds hashes, never a key."""

from hashlib import sha256
from typing import Annotated

import msgspec

from engine_server.contract.base.caller import Priority

Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]
CacheScope = Annotated[str, msgspec.Meta(pattern=r"^([A-Za-z0-9][A-Za-z0-9._-]{0,62}|\*)$")]
Digest = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-fA-F]{64}$")]
Limit = Annotated[int, msgspec.Meta(ge=1, le=1 << 53)]

ALL_OF_NAMESPACE = "/*"


class KeyEntry(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True, omit_defaults=True
):
    """One key: the caller's name, the hash of the key, and what it allows. None stands for no limit."""

    name: Name
    sha256: Digest
    # Names of models, NAMESPACE/NAME, or NAMESPACE/* for all of a namespace; None for all.
    models: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)] | None = None
    requests_per_minute: Limit | None = None
    tokens_per_minute: Limit | None = None
    # Requests in flight.
    concurrency: Limit | None = None
    # Requests of a higher priority are sent first if they are held, and run first where engines schedule by it.
    priority: Priority = 0
    # Keys with the same scope share cached prompts at the engines; None: the key's own name.
    cache_scope: CacheScope | None = None

    @property
    def digest(self) -> bytes:
        """The hash of the key, as `digest_of` returns it."""
        return bytes.fromhex(self.sha256)


def digest_of(key: bytes) -> bytes:
    """Return the hash by which a key is found."""
    return sha256(key).digest()


def decode_keys(content: bytes) -> tuple[KeyEntry, ...]:
    """Parse a keys file, a YAML or JSON list of entries. Raises ValueError, whose text shows no hash."""
    import yaml  # not every router has a keys file

    try:
        entries = msgspec.convert(yaml.safe_load(content) or [], tuple[KeyEntry, ...])
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ValueError(f"line {line} is not valid YAML") from None
    except yaml.YAMLError:
        raise ValueError("it is not YAML") from None
    names: set[str] = set()
    digests: set[bytes] = set()
    for entry in entries:
        if entry.name in names:
            raise ValueError(f"two keys have the name {entry.name!r}")
        if entry.digest in digests:
            raise ValueError(f"the key {entry.name!r} has the sha256 of another one")
        for model in entry.models or ():
            if not model or "*" in model.removesuffix(ALL_OF_NAMESPACE):
                raise ValueError(
                    f"the key {entry.name!r} has the model {model!r}: allowed are the name of a model, "
                    "NAMESPACE/NAME, and NAMESPACE/* for all of a namespace; for all models leave `models` out"
                )
        names.add(entry.name)
        digests.add(entry.digest)
    return entries
