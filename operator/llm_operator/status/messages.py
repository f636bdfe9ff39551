"""The text of a condition's message: one line, without credentials, and not too long."""

import re

LONGEST_MESSAGE = 1000
# Of longer texts only so much is read: the rest would be cut off anyway.
LONGEST_TEXT = 4 * LONGEST_MESSAGE
# Addresses with `user:password@`, in three groups: the start to keep, the password, and what follows the @. A password
# may contain unescaped delimiters, so the last @ counts.
# URLs of any scheme.
URL = r'((?<![A-Za-z0-9+.-])[A-Za-z0-9+.-]+://)[^\s"/?#:]*:([^\s"]*)@([^\s"]*)'
# Without a scheme, as in a proxy's address, or after one that is misspelled. IMAGE:TAG@sha256:DIGEST is not one.
BARE_ADDRESS = r"""((?<![^\s"'`(=,;<\[])|(?<=//))[^\s"'`(=,;<\[:/]*:(?!//)([^\s"]*)@(?!sha\d+:)([^\s"]*)"""
# Both in one pass: a password may look like the other kind of address, or like a token.
ADDRESS = re.compile(f"{URL}|{BARE_ADDRESS}")
# In web URLs also a token in place of the user's name.
URL_TOKEN = re.compile(r'(https?://)[^\s/?#"]+@', re.IGNORECASE)
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
    text = ADDRESS.sub(without_password, text)
    text = URL_TOKEN.sub(r"\1", text)
    return QUERY.sub("", text)


def without_password(address: re.Match[str]) -> str:
    """Return an address without its password; without its host too if the @ may belong to a query."""
    start, password, rest = (group for group in address.groups() if group is not None)
    return start + ("…" if "?" in password else rest)
