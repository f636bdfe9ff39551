"""Bodies are parsed without their pictures, and give what the whole body gives."""

import base64
import json
import random
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_server.engine.conversation.turns import ImagePart
from engine_server.requests.errors import InvalidRequestError
from engine_server.server.api.chat.request import ChatRequest
from engine_server.server.api.cut_body import CutBody, plain_files
from engine_server.server.api.generation_request import parse_request, read_json
from engine_server.server.api.messages.request import MessagesRequest
from engine_server.server.api.responses.request import ResponsesRequest
from engine_server.server.http.errors import ApiError
from engine_server.shared.body_buffer import MOVED_BYTES, Body, BodyBuffer

KINDS = [ChatRequest, MessagesRequest, ResponsesRequest]
each_kind = pytest.mark.parametrize("kind", KINDS)
# Larger than what stays in a body.
DATA = random.Random(0).randbytes(6000)
OTHER = random.Random(1).randbytes(9000)


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def data_url(data: bytes) -> str:
    return f"data:image/png;base64,{encoded(data)}"


def picture(kind: type, data: bytes, **more: Any) -> dict[str, Any]:
    if kind is MessagesRequest:
        source = {"type": "base64", "media_type": "image/png", "data": encoded(data)}
        return {"type": "image", "source": source, **more}
    if kind is ResponsesRequest:
        return {"type": "input_image", "image_url": data_url(data), **more}
    return {"type": "image_url", "image_url": {"url": data_url(data)}, **more}


def text(kind: type, written: str) -> dict[str, Any]:
    return {"type": "input_text" if kind is ResponsesRequest else "text", "text": written}


def body_of(kind: type, *parts: Mapping[str, Any], role: str = "user", **more: Any) -> bytes:
    turns = [{"role": role, "content": parts}, {"role": "user", "content": "What is it?"}]
    place = "input" if kind is ResponsesRequest else "messages"
    return json.dumps({"model": "m", "max_tokens": 8, place: turns, **more}).encode()


def described(value: Any) -> Any:
    """Return a value with each picture as its file, or as what is wrong with it."""
    if isinstance(value, ImagePart):
        try:
            return [value.type, value.path, value.sent.low_detail, value.sent.picture().data]
        except InvalidRequestError as error:
            return [value.type, value.path, str(error)]
    if is_dataclass(value):
        return [type(value).__name__, *(described(getattr(value, field.name)) for field in fields(value))]
    return [described(one) for one in value] if isinstance(value, tuple | list) else value


def outcome(read: Any, kind: type, *arguments: Any) -> Any:
    try:
        request = read(kind, *arguments)
        others = request.model_dump(exclude={"messages", "input"})
        return described(request.turns), others, described(list(request.media))
    except (ApiError, InvalidRequestError) as error:
        return type(error).__name__, str(error), getattr(error, "param", None)


def of_whole(kind: type, body: bytes) -> Any:
    return outcome(read_json, kind, body, CutBody(body, ()))


def of_cut(kind: type, body: Body) -> Any:
    return outcome(parse_request, kind, body, True)


def pictures_in(turns: Any) -> list[ImagePart]:
    if isinstance(turns, ImagePart):
        return [turns]
    if is_dataclass(turns):
        return pictures_in([getattr(turns, field.name) for field in fields(turns)])
    return [found for one in turns for found in pictures_in(one)] if isinstance(turns, tuple | list) else []


@each_kind
def test_the_parser_copies_no_picture(kind: type) -> None:
    body = body_of(kind, picture(kind, DATA), text(kind, "and"), picture(kind, OTHER), picture(kind, DATA))

    found = pictures_in(parse_request(kind, body, True).turns)

    assert [type(one.sent.base64) for one in found] == [memoryview] * 3
    assert [one.sent.picture().data for one in found] == [DATA, OTHER, DATA]


@each_kind
def test_escaped_characters_are_left_to_the_parser(kind: type) -> None:
    body = body_of(kind, picture(kind, DATA)).replace(b"/", b"\\/")

    (found,) = pictures_in(parse_request(kind, body, True).turns)

    assert not plain_files(body)
    assert isinstance(found.sent.base64, str) and found.sent.picture().data == DATA


PLACES = {
    "text": lambda kind: body_of(kind, text(kind, data_url(DATA)), picture(kind, OTHER)),
    "a turn of the assistant": lambda kind: body_of(kind, picture(kind, DATA), role="assistant"),
    "an unknown field": lambda kind: body_of(kind, picture(kind, OTHER), sent={"data": encoded(DATA)}),
    "metadata": lambda kind: body_of(kind, picture(kind, OTHER), metadata={"data": encoded(DATA)}),
    "the name of a field": lambda kind: body_of(kind, picture(kind, OTHER), **{data_url(DATA): 1}),
    "the model": lambda kind: body_of(kind, picture(kind, OTHER), model=data_url(DATA)),
    "a picture that is refused": lambda kind: body_of(kind, picture(kind, DATA, uuid="1", file_id="1")),
    "a part of another type": lambda kind: body_of(kind, picture(kind, DATA) | {"type": "input_file"}),
    "a field of a picture": lambda kind: body_of(kind, picture(kind, OTHER) | {"data": encoded(DATA)}),
    "beside a wrong field": lambda kind: body_of(kind, picture(kind, DATA), temperature="hot"),
    "beside a whole number with a fraction": lambda kind: body_of(
        kind, picture(kind, DATA), max_tokens=8.0, seed=3.0
    ),
    "a result": lambda kind: body_of(
        kind,
        {"type": "tool_result", "tool_use_id": "1", "content": [picture(MessagesRequest, DATA)]},
    ),
    "a document": lambda kind: body_of(
        kind, {"type": "document", "source": {"type": "text", "data": encoded(DATA)}}, picture(kind, OTHER)
    ),
}


@each_kind
@pytest.mark.parametrize("place", PLACES)
def test_a_file_in_any_place_gives_what_the_whole_body_gives(kind: type, place: str) -> None:
    body = PLACES[place](kind)

    assert plain_files(body)
    assert of_cut(kind, body) == of_whole(kind, body)


@each_kind
@pytest.mark.parametrize(
    "written",
    [
        b'"dupli": 1, "image_url": null, "source": null, "url": "", "data": ""',
        b'"source": {"type": "base64", "data": "AAAA"}, "image_url": {"url": "data:;base64,AAAA"}',
        b'"image_url": "data:;base64,AAAA"',
    ],
)
def test_the_last_of_duplicate_keys_counts(kind: type, written: bytes) -> None:
    body = body_of(kind, picture(kind, DATA, last=1)).replace(b'"last": 1', written)

    assert plain_files(body) and written in body
    assert of_cut(kind, body) == of_whole(kind, body)


@each_kind
@pytest.mark.parametrize(
    "character",
    [
        b"\\u0041",
        b"\\n",
        b'\\"',
        b"\\\\",
        b"\\x",
        b"\n",
        b"\0",
        b" ",
        b"*",
        b"=",
        "漢".encode(),
        b"\xff",
        b"\x7f",
        b'"',
    ],
)
@pytest.mark.parametrize("at", [0, 10, 4000, -10, -1])
def test_any_character_within_a_picture_gives_what_the_whole_body_gives(
    kind: type, character: bytes, at: int
) -> None:
    whole = encoded(DATA).encode()
    changed = whole[:at] + character + whole[at:]
    body = body_of(kind, picture(kind, DATA), picture(kind, OTHER)).replace(whole, changed)

    assert character in body
    assert of_cut(kind, body) == of_whole(kind, body)


@pytest.mark.parametrize(
    "prefix", ["data:image\\/png;base64,", "data:a\\u002cb;base64,", "data:;base64\\u002cAAAA;base64,"]
)
def test_an_escaped_prefix_of_a_url_gives_what_the_whole_body_gives(prefix: str) -> None:
    body = body_of(ChatRequest, picture(ChatRequest, DATA)).replace(
        b"data:image/png;base64,", prefix.encode()
    )

    assert plain_files(body)
    assert of_cut(ChatRequest, body) == of_whole(ChatRequest, body)


def test_a_body_that_arrived_in_pieces_is_read_like_one_of_bytes() -> None:
    data = random.Random(2).randbytes(MOVED_BYTES)
    body = body_of(ChatRequest, picture(ChatRequest, data), text(ChatRequest, data_url(OTHER)))
    buffer = BodyBuffer(2 * len(body))
    for start in range(0, len(body), 100_000):
        buffer.add(body[start : start + 100_000])

    assert of_cut(ChatRequest, buffer.whole()) == of_whole(ChatRequest, body)


strings = st.builds(
    lambda begin, count, end: begin + "A/+b" * count + end,
    st.sampled_from(["", "data:image/png;base64,", "data:,", 'x"', "\\"]),
    st.integers(0, 3000),
    st.sampled_from(["", "AA==", " ", "é", '"', "\\", ",[{"]),
)


@given(st.sampled_from(KINDS), st.data())
def test_any_strings_give_what_the_whole_body_gives(kind: type, data: st.DataObject) -> None:
    def drawn() -> str:
        return data.draw(strings)

    def part() -> dict[str, Any]:
        fields = {
            "url": drawn(),
            "data": drawn(),
            "type": data.draw(st.sampled_from(["base64", "url", drawn()])),
        }
        return {
            "type": data.draw(
                st.sampled_from(["image_url", "input_image", "image", "text", "input_text", "file"])
            ),
            "text": drawn(),
            "image_url": data.draw(st.sampled_from([drawn(), fields])),
            "source": fields,
        }

    body = body_of(kind, *(part() for _ in range(data.draw(st.integers(1, 3)))), user=drawn())
    if data.draw(st.booleans()):
        body = body.replace(b"/", b"\\/", data.draw(st.integers(1, 50)))

    assert of_cut(kind, body) == of_whole(kind, body)
