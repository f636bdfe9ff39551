"""Bodies without the bulk of their pictures."""

import base64
import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_server.shared.abridged_body import KEPT_BYTES, abridge

MIB = 1 << 20


def picture(size: int, seed: int = 0) -> str:
    """Return base64 of `size` characters, a multiple of 4."""
    return base64.b64encode(random.Random(seed).randbytes(size // 4 * 3)).decode()


def data_url(data: str, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{data}"


def with_part(part: dict) -> bytearray:
    content = [{"type": "text", "text": "What is this?"}, part]
    return bytearray(json.dumps({"model": "m", "messages": [{"role": "user", "content": content}]}).encode())


PARTS = {
    "image_url": lambda data: {"type": "image_url", "image_url": {"url": data_url(data)}},
    "input_image": lambda data: {"type": "input_image", "image_url": data_url(data)},
    "source": lambda data: {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": data},
    },
    "parameters": lambda data: {
        "type": "image_url",
        "image_url": {"url": data_url(data, "image/png;charset=utf-8")},
    },
    "a file": lambda data: {"type": "file", "file": {"file_data": data_url(data, "application/pdf")}},
}


@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
def test_a_picture_counts_as_4_kb_in_the_form_of_every_api(part):
    around = len(with_part(part("")))

    assert len(abridge(with_part(part(picture(1_400_000))))) == around + KEPT_BYTES


@pytest.mark.parametrize("break_", ["/", "\r\n"], ids=["escaped slashes", "lines"])
def test_a_picture_with_escapes_counts_as_4_kb(break_):
    data = break_.join(picture(76, seed) for seed in range(2000))
    body = with_part(PARTS["image_url"](data))
    if break_ == "/":
        body = body.replace(b"/", b"\\/")

    assert len(abridge(body)) < 2 * KEPT_BYTES
    assert json.loads(abridge(body)).keys() == {"model", "messages"}


def test_each_picture_of_a_conversation_counts():
    content = [PARTS["image_url"](picture(200_000, seed)) for seed in range(20)]
    message = {"role": "user", "content": content}
    body = json.dumps({"model": "m", "messages": [message]}).encode()

    assert 20 * KEPT_BYTES < len(abridge(body)) < 21 * KEPT_BYTES


def test_the_ends_and_the_length_of_a_picture_are_kept():
    data = picture(100_000)
    changed = {
        "beginning": "AAAA" + data[4:],
        "end": data[:-4] + "AAAA",
        "length": data[:50_000] + data[50_004:],
    }

    bodies = {bytes(abridge(with_part(PARTS["source"](one)))) for one in [data, *changed.values()]}

    assert len(bodies) == 1 + len(changed)


@pytest.mark.parametrize(
    "text",
    [
        "x" * MIB,
        "the quick brown fox " * 50_000,
        "data:image/png;base64," + "A" * 100_000 + " is what he sent. " + "Then he left. " * 1000,
        "A" * 100_000 + '"' + "A" * 100_000,
        "漢字" * 50_000,
    ],
    ids=["one word", "words", "a data URL and words", "words around a quote", "no spaces"],
)
@pytest.mark.parametrize("ascii_only", [True, False])
def test_text_counts_in_full(text, ascii_only):
    body = json.dumps({"model": "m", "prompt": text}, ensure_ascii=ascii_only).encode()

    assert abridge(body) is body


def test_a_small_picture_stays_as_it_is():
    body = with_part(PARTS["image_url"](picture(KEPT_BYTES)))

    assert abridge(body) is body


pieces = st.text(st.sampled_from('aA+/=-_\\" ,漢\n'), max_size=20)
values = st.recursive(
    st.builds(lambda text, size, end: text + "A" * size + end, pieces, st.integers(0, 20_000), pieces)
    | st.builds(lambda size, end: data_url("A/+b" * size + end), st.integers(0, 5_000), pieces),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.just("data") | pieces, inner, max_size=3),
    max_leaves=6,
)


def shape(value):
    """Return a value with each string that may be a picture replaced."""
    if isinstance(value, dict):
        return {key: shape(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [shape(inner) for inner in value]
    return value if len(value) <= 2000 else (value[:1000], value[-1000:])


@given(values, st.booleans())
def test_what_is_cut_stays_the_same_json_and_is_cut_once(value, escaped):
    text = json.dumps(value)
    body = (text.replace("/", "\\/") if escaped else text).encode()

    cut = abridge(body)

    assert shape(json.loads(cut)) == shape(value)
    assert abridge(cut) is cut
    assert len(cut) <= len(body)


@given(st.binary(max_size=200), st.integers(0, 3))
def test_any_bytes_are_taken(noise, times):
    abridge((noise + b'"data":"' + b"A" * 5000) * times + noise)
