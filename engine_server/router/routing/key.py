"""The part of a request that routing depends on."""

import msgspec

from engine_server.router import errors


class RouteKey(msgspec.Struct, frozen=True):
    """All that a policy may know of a request; the body's other fields are skipped unread."""

    model: str


_decoder = msgspec.json.Decoder(RouteKey)


def decode_key(body: bytearray) -> RouteKey:
    """Return the key of a request with this JSON body. Raises RequestError (400) if it names no model."""
    try:
        return _decoder.decode(body)
    except msgspec.ValidationError as error:
        raise errors.bad_body(f"The body does not say which model it is for: {error}", "model") from None
    except msgspec.DecodeError as error:
        raise errors.bad_body(f"The body is not JSON: {error}") from None
