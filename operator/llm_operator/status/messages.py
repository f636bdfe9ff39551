"""The text of a condition's message: one line, without credentials, and not too long."""

import re

LONGEST_MESSAGE = 1000
# Of longer texts only so much is read: the rest would be cut off anyway.
LONGEST_TEXT = 4 * LONGEST_MESSAGE
# In URLs of any scheme: `user:password@`. A password may contain unescaped delimiters, so the last @ counts.
URL_PASSWORD = re.compile(
    r'(?P<start>(?<![A-Za-z0-9+.-])[A-Za-z0-9+.-]+://)[^\s"/?#:]*:(?P<secret>[^\s"]*)@(?P<rest>[^\s"]*)'
)
# In web URLs also a token in place of the user's name.
URL_TOKEN = re.compile(r'(https?://)[^\s/?#"]+@', re.IGNORECASE)
# Without a scheme, as in a proxy's address: `user:password@host`. IMAGE:TAG@sha256:DIGEST is not one.
BARE_PASSWORD = re.compile(
    r"""(?P<start>(?<![^\s"'`(=,;<\[]))[^\s"'`(=,;<\[:/@]+:(?!//)(?P<secret>[^\s"]*)@(?!sha\d+:)(?P<rest>[^\s"]*)"""
)
# A query, of a URL or of a path alone; the punctuation of the sentence after it is kept.
QUERY = re.compile(r"""(?<=\S)\?[^\s"]*[^\s"'`<>:,.;)\]}]""")


def presentable(message: str) -> str:
    """Return a message from the cluster as users may see it in conditions, events and logs."""
    text = " ".join(message.split())
    if len(text) > LONGEST_TEXT:
        # Without the last word, which may be a part of an address whose @ is cut off.
        text = text[:LONGEST_TEXT].rpartition(" ")[0]
    text = without_credentials(text)
    return text if len(text) <= LONGEST_MESSAGE else text[: LONGEST_MESSAGE - 1] + "…"


def without_credentials(text: str) -> str:
    """Remove `user:password@` and query strings."""
    text = URL_PASSWORD.sub(without_password, text)
    text = URL_TOKEN.sub(r"\1", text)
    text = BARE_PASSWORD.sub(without_password, text)
    return QUERY.sub("", text)


def without_password(address: re.Match[str]) -> str:
    """Return an address without its password; without its host too if the @ may belong to a query."""
    return address["start"] + ("…" if "?" in address["secret"] else address["rest"])
