"""vLLM's forms of settings of pictures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine_server.contract.base.bounds import PICTURES
from engine_server.contract.base.quoting import quote

# Of the settings of a picture's processor.
OPTIONS = {"size"}
# Media that no model here takes, of which any number is allowed.
OTHERS = {"audio", "video"}
LARGEST = 1024


def picture_limit(limits: Mapping[str, Any]) -> int:
    """Return the most pictures of a request, from {"image": N} or {"image": {"count": N}}. Raises ValueError."""
    if unknown := limits.keys() - OTHERS - {"image"}:
        raise ValueError(f"limit_mm_per_prompt has {quote(min(unknown))}; it takes image, audio and video")
    given = limits.get("image", PICTURES.limit)
    limit = given.get("count", PICTURES.limit) if isinstance(given, Mapping) else given
    if isinstance(limit, bool) or not isinstance(limit, int) or not 0 <= limit <= LARGEST:
        raise ValueError(
            f"limit_mm_per_prompt has {quote(limit)} for image; it takes an integer from 0 to {LARGEST}"
        )
    return limit


def picture_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of the processor of pictures. Raises ValueError for others than those that it takes."""
    if unknown := options.keys() - OPTIONS:
        raise ValueError(f"mm_processor_kwargs has {quote(min(unknown))}; it takes {', '.join(OPTIONS)}")
    return dict(options)
