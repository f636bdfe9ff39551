"""The bounds of a manifest as a whole, which are checked before anything else reads it. CEL can't measure an object."""

from collections.abc import Mapping
from typing import Any

import msgspec

from engine_server.contract.base.nesting import MOST_LEVELS, has_more_levels
from llm_operator.api.schema import SpecError

# As JSON. The API server stores objects of 1.5 MB, and a plan holds its spec several times. Files, the largest part of
# a spec, have to fit into a ConfigMap, which has at most 1 MiB.
MOST_SPEC_BYTES = 1 << 20
# The fields of objects and the items of arrays. A plan looks at each several times: a
# mebibyte of small ones would hold up every other LLMDeployment for seconds.
MOST_VALUES = 10_000


def check_form(manifest: object) -> None:
    """Raise SpecError for a manifest that has too many values, or is nested too deeply."""
    spec = manifest.get("spec") if isinstance(manifest, Mapping) else manifest
    if has_more_values(spec, MOST_VALUES):
        raise SpecError("spec", f"it has more than {MOST_VALUES:,} values; at most so many are allowed")
    if has_more_levels(manifest, MOST_LEVELS):
        raise SpecError("spec", f"objects and arrays are nested in more than {MOST_LEVELS} levels")


def has_more_values(value: object, most: int) -> bool:
    """Return True for a decoded value that has more than `most` others in it. No more than those are looked at."""
    pending: list[Any] = [value]
    count = 0
    while pending:
        found = pending.pop()
        if not isinstance(found, Mapping | list):
            continue
        count += len(found)
        if count > most:
            return True
        pending.extend(found.values() if isinstance(found, Mapping) else found)
    return False


def check_size(spec: object) -> None:
    """Raise SpecError for a spec that is larger than any that can be planned."""
    try:
        size = len(msgspec.json.encode(spec))
    except TypeError as error:  # of YAML, which has more types
        raise SpecError("spec", f"it is not JSON: {error}") from None
    if size > MOST_SPEC_BYTES:
        raise SpecError("spec", f"it has {size:,} bytes as JSON; at most {MOST_SPEC_BYTES:,} are allowed")
