"""The text of a condition's message: one line, without credentials, and not too long."""

import re

LONGEST_MESSAGE = 1000
# Of longer texts only so much is read: the rest would be cut off anyway.
LONGEST_TEXT = 4 * LONGEST_MESSAGE
WORD = re.compile(r'[^\s"]+')
# What comes before the password in `user:password@`: in URLs of any scheme, and without one, as in a proxy's address.
URL = re.compile(r"(?P<kept>(?<![A-Za-z0-9+.-])[A-Za-z0-9+.-]+://)[^/?#:]*:")
BARE_ADDRESS = re.compile(r"""(?P<kept>(?<![^'`(=,;<\[])|(?<=//))[^'`(=,;<\[:/]*:(?!//)""")
# IMAGE:TAG@sha256:DIGEST is no address.
DIGEST = re.compile(r"@(?=sha\d+:)")
# In web URLs also a token in place of the user's name.
URL_TOKEN = re.compile(r'(https?://)[^\s/?#"]+@', re.IGNORECASE)
# A query, of a URL or of a path alone; the punctuation of the sentence after it is kept.
QUERY = re.compile(r"""(?<=\S)\?[^\s"]*[^\s"'`<>:,.;)\]}]""")


def bounded(message: str) -> str:
    """Return a message as one line of at most LONGEST_TEXT characters: who may write it may write a megabyte."""
    text = " ".join(message.split())
    # Without the last word, which may be a part of an address whose @ is cut off.
    return text if len(text) <= LONGEST_TEXT else text[:LONGEST_TEXT].rpartition(" ")[0]


def presentable(message: str) -> str:
    """Return a message from the cluster as users may see it in conditions, events and logs."""
    text = without_credentials(bounded(message))
    return text if len(text) <= LONGEST_MESSAGE else text[: LONGEST_MESSAGE - 1] + "…"


def without_credentials(text: str) -> str:
    """Remove `user:password@` and query strings."""
    text = WORD.sub(without_password, text)
    text = URL_TOKEN.sub(r"\1", text)
    return QUERY.sub("", text)


def without_password(word: re.Match[str]) -> str:
    """Return a word without the password in it; without the host after it too if the @ may belong to a query.

    A password may contain unescaped delimiters, and look like another address: the first start and the last @ count.
    """
    text = word[0]
    # Without an @ the end is -1, before which nothing is found.
    ends = ((URL, text.rfind("@")), (BARE_ADDRESS, DIGEST.sub(" ", text).rfind("@")))
    found = [
        (start.end("kept"), start.end(), end) for kind, end in ends if (start := kind.search(text, 0, end))
    ]
    if not found:
        return text
    kept, begin, end = min(found)
    return text[:kept] + ("…" if "?" in text[begin:end] else text[end + 1 :])
