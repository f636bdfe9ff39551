"""The formats in which pictures are taken, as a file's first bytes tell them."""

FORMATS = ("PNG", "JPEG", "WEBP", "GIF")


def format_of(data: bytes) -> str | None:
    """Return a picture's format by Pillow's name, or None for any other file."""
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "PNG"
    if data.startswith(b"\xff\xd8\xff"):
        return "JPEG"
    if data.startswith((b"GIF87a", b"GIF89a")):
        return "GIF"
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return "WEBP"
    return None
