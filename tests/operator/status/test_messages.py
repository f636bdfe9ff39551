"""Messages without credentials, whatever prints them."""

import string
from urllib.parse import quote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from llm_operator.status.messages import LONGEST_MESSAGE, presentable

# Printable characters but white space and the double quote, which end a URL in text.
VISIBLE = [c for c in string.printable if c not in string.whitespace + '"']
USERS = st.text(string.ascii_letters + string.digits + "-._@", max_size=12)
PASSWORDS = st.text(VISIBLE, min_size=1, max_size=30).map(lambda text: "s3cr3t" + text + "s3cr3t")
HOSTS = st.sampled_from(["proxy.corp:3128", "10.0.0.1", "[fd00::1]:80", "bucket.s3.amazonaws.com"])
SCHEMES = st.sampled_from(["http://", "https://", "HTTPS://", "socks5h://", "s3://", "http:///", "//", ""])
PHRASES = st.sampled_from(
    [
        "{}",
        "cannot connect to proxy {}: refused",
        "HTTPSConnectionPool(proxies={{'https': '{}'}})",
        'Get "{}": EOF',
        "proxy={}, then retry",
    ]
)


@given(SCHEMES, USERS, PASSWORDS, HOSTS, PHRASES)
@example("", "u", "s3cr3thttp://s3cr3t", "10.0.0.1", "{}")
@example("", "u", "s3cr3t://:s3cr3t", "10.0.0.1", "{}")
@example("http://", "u", "s3cr3t,x:s3cr3t", "10.0.0.1", "{}")
@example("", "u@corp", "s3cr3t", "10.0.0.1", "{}")
@example("", "", "s3cr3t", "10.0.0.1", "{}")
@example("//", "u", "s3cr3t", "10.0.0.1", "{}")
def test_a_password_never_remains(scheme: str, user: str, password: str, host: str, phrase: str) -> None:
    for spelled in (password, quote(password, safe="")):
        shown = presentable(phrase.format(f"{scheme}{user}:{spelled}@{host}/path"))
        assert "s3cr3t" not in shown
        assert host in shown or "?" in spelled


@given(
    st.sampled_from(["https://bucket.s3.amazonaws.com", "https://host:443", "https://user:pass@host", ""]),
    PASSWORDS,
    PHRASES,
)
def test_a_query_never_remains(origin: str, value: str, phrase: str) -> None:
    shown = presentable(phrase.format(f"{origin}/model.safetensors?X-Amz-Signature={value}"))
    assert "s3cr3t" not in shown
    assert "/model.safetensors" in shown or "@" in value


@given(PASSWORDS, st.integers(0, 1200) | st.integers(3900, 4100))
def test_a_password_at_the_end_of_a_long_message_never_remains(password: str, length: int) -> None:
    assert "s3cr3t" not in presentable(f"{'x' * length} http://user:{password}@proxy:3128/")


@given(PASSWORDS, st.integers(3900, 4100))
def test_a_password_after_long_queries_never_remains(password: str, length: int) -> None:
    message = f"GET /x?{'q' * length} http://user:{password}@proxy:3128/ and so on"
    assert "s3cr3t" not in presentable(message)


def test_a_token_in_place_of_the_user_is_removed() -> None:
    assert presentable("GET https://hf_abc@huggingface.co/org/name") == "GET https://huggingface.co/org/name"


@pytest.mark.parametrize(
    "message",
    [
        "hf://org/name@main: the repository at https://huggingface.co has no revision main",
        'Back-off pulling image "registry:5000/fairlead:1.2.3@sha256:0123abcd"',
        "Back-off pulling image fairlead:1.2.3@sha256:0123abcd",
        "0/2 nodes are available: 1 node(s) had untolerated taint {nvidia.com/gpu: present}.",
        "what is wrong? nothing",
        "see https://huggingface.co/org/name, then retry at 12:30:00",
        'no match for platform in manifest: "linux/arm64"',
    ],
)
def test_other_text_stays(message: str) -> None:
    assert presentable(message) == message


def test_white_space_is_collapsed_and_length_is_limited() -> None:
    assert presentable(" one\n two\t three ") == "one two three"
    assert len(presentable("word " * 2000)) == LONGEST_MESSAGE
