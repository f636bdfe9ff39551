"""Pictures in base64."""

import base64
import hashlib
import os

import pytest

from engine_server.contract.base.bounds import PICTURE_BYTES
from engine_server.engine.input.picture_parts import read_image_url
from engine_server.engine.input.sent_picture import PIECE, SentPicture
from engine_server.requests.errors import InvalidRequestError

DATA = os.urandom(1000)
TEXT = base64.b64encode(DATA).decode()


@pytest.mark.parametrize("size", [1, 2, 3, PIECE // 4 * 3 - 1, PIECE // 4 * 3, PIECE // 4 * 3 + 1, 2 * PIECE])
def test_picture_is_decoded_in_pieces_and_hashed(size: int) -> None:
    data = os.urandom(size)
    picture = SentPicture(base64.b64encode(data).decode(), is_url=False).picture()
    assert picture.data == data
    assert picture.sha256 == hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize(
    "url",
    [
        f"data:image/png;base64,{TEXT}",
        f"data:;base64,{TEXT}",
        f"DATA:image/png;name=a.png;charset=utf-8;BASE64,{TEXT}",
        f"data:text/plain;base64,{TEXT}",
        f"data:image/png;base64,{TEXT.rstrip('=')}",
        f"data:image/png;base64,{base64.encodebytes(DATA).decode()}",
    ],
)
def test_data_urls_have_any_parameters(url: str) -> None:
    assert SentPicture(url, is_url=True).picture().data == DATA


@pytest.mark.parametrize(
    "url, message",
    [
        (
            "https://example.com/a.png",
            "the URL of the picture is 'https://example.com/a.png'; it takes a data: URL",
        ),
        ("file:///etc/passwd", "it takes a data: URL"),
        (f"data:image/png,{TEXT}", "has no base64"),
        ("data:image/png;base64", "has no base64"),
        ("data:image/png;base64,", "the picture is empty"),
        ("data:image/png;base64,AAA*", "not valid base64"),
        ("data:image/png;base64,AA==AAAA", "not valid base64"),
        ("data:image/png;base64,A", "not valid base64"),
        ("data:image/png;base64,ÄÄÄÄ", "not valid base64"),
        ("", "it takes a data: URL"),
    ],
)
def test_other_urls_and_bad_base64_are_refused(url: str, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        SentPicture(url, is_url=True).picture()


def test_padding_within_pieces_is_refused() -> None:
    text = "A" * (PIECE - 2) + "==" + "AAAA"
    with pytest.raises(InvalidRequestError, match="not valid base64"):
        SentPicture(text, is_url=False).picture()


def test_large_picture_is_refused_before_it_is_decoded() -> None:
    largest = SentPicture("A" * (PICTURE_BYTES.limit // 3 * 4), is_url=False)
    largest.check()
    larger = SentPicture("*" * (PICTURE_BYTES.limit // 3 * 4 + 8), is_url=False)
    with pytest.raises(InvalidRequestError, match=r"20,971,5.. bytes in a picture; at most 20,971,520"):
        larger.check()
    with pytest.raises(InvalidRequestError, match="bytes in a picture"):
        SentPicture.of_file(bytes(PICTURE_BYTES.limit + 1)).picture()


def test_picture_is_decoded_once() -> None:
    sent = SentPicture(TEXT, is_url=False)
    assert sent.picture() is sent.picture()
    assert not len(sent)


@pytest.mark.parametrize(
    "part, message",
    [
        ({"image_url": {"url": f"data:;base64,{TEXT}"}, "uuid": "a"}, "has a uuid"),
        ({"file_id": "file-1"}, "has a file_id"),
        ({"image_url": {}}, "has no image_url.url"),
        ({"image_url": 1}, "has no image_url.url"),
        ({}, "has no image_url.url"),
    ],
)
def test_wrong_part_is_named_once_it_is_decoded(part: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        read_image_url(part).check()


@pytest.mark.parametrize(
    "image, low", [("URL", False), ({"url": "URL"}, False), ({"url": "URL", "detail": "high"}, False),
                   ({"url": "URL", "detail": "low"}, True)]
)  # fmt: skip
def test_detail_may_be_low(image: object, low: bool) -> None:
    assert read_image_url({"image_url": image}).low_detail is low
