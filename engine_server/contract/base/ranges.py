"""Ranges of the numbers and lengths of the names that processes tell each other.

The types are checked where a message is decoded, so that no number behind a decoder can overflow.
"""

from typing import Annotated

from msgspec import Meta

MOST = 1 << 31
MOST_SECONDS = 1e9

# A number of things at one time or of one request, such as its tokens.
Count = Annotated[int, Meta(ge=0, le=MOST)]
# A number of things since a process started, or of bytes.
Total = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
# Such a number as a float, between two whole numbers.
Amount = Annotated[float, Meta(ge=0.0, le=float(1 << 63))]
# Of a whole.
Share = Annotated[float, Meta(ge=0.0, le=1.0)]
Percent = Annotated[int, Meta(ge=0, le=100)]
# A duration, in seconds.
Seconds = Annotated[float, Meta(ge=0.0, le=MOST_SECONDS)]
# A time in whole seconds since the epoch.
Timestamp = Annotated[int, Meta(ge=0, le=1 << 40)]
PortNumber = Annotated[int, Meta(ge=0, le=65535)]
Int64 = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
# A word of a program, or a hash.
Word = Annotated[str, Meta(max_length=128)]
