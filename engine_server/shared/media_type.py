"""The media type that requests declare. A page of another site can send a body of another type without a question."""


def is_json(content_type: bytes) -> bool:
    """Return True for a field `Content-Type` that declares JSON."""
    if content_type == b"application/json":
        return True
    media_type = content_type.partition(b";")[0].strip().lower()
    if media_type == b"application/json":
        return True
    return media_type.startswith(b"application/") and media_type.endswith(b"+json")
