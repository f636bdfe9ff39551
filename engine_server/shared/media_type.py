"""The media type that requests declare. A page of another site can send a body of another type without a question."""


def media_type(content_type: bytes) -> bytes:
    """Return the media type of a field `Content-Type`, in lower case and without parameters."""
    return content_type.partition(b";")[0].strip().lower()


def is_json(content_type: bytes) -> bool:
    """Return True for a field `Content-Type` that declares JSON."""
    if content_type == b"application/json":
        return True
    declared = media_type(content_type)
    if declared == b"application/json":
        return True
    return declared.startswith(b"application/") and declared.endswith(b"+json")
