"""The key of a request, and its agreement with the parser of the engine."""

import json
import tracemalloc
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import from_json
from tiers import tiered
from xxhash import xxh3_64_hexdigest

from engine_server.router.errors import RequestError
from engine_server.router.routing.key import MAX_SESSION_CHARS, RouteKey, read_key
from engine_server.shared.abridged_body import abridge

CHARS = 20
# Spelled alike in JSON of any layout.
PICTURE = "data:,"


def key_of(body, headers=None, prefix_chars=CHARS) -> RouteKey:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return read_key(bytearray(data), headers or {}, prefix_chars)


def expected_text(value) -> str:
    """Return the text that the engine's parser sees in a message's content, and a digest of PICTURE if it has one."""
    if isinstance(value, list):
        text = "\n".join(part["text"] for part in value if isinstance(part.get("text"), str))[:CHARS]
        return (
            f"{text}\n{xxh3_64_hexdigest(json.dumps(PICTURE).encode())}"
            if {"image_url": PICTURE} in value
            else text
        )
    return value[:CHARS] if isinstance(value, str) else ""


def expected_user_text(messages) -> str:
    users = [message for message in messages if message.get("role") == "user"]
    return expected_text((users or messages)[0].get("content"))


def expected_opening(prompt) -> str:
    if isinstance(prompt, list) and prompt:
        if isinstance(prompt[0], dict):
            return expected_user_text(prompt)
        if isinstance(prompt[0], list):
            prompt = prompt[0]
        if isinstance(prompt[0], int):
            return ",".join(map(str, prompt))[:CHARS]
        prompt = prompt[0]
    return expected_text(prompt)


def expected_key(body: bytes) -> RouteKey:
    """Return the key that follows from a full parse by pydantic's parser, which the engine's server uses."""
    fields = from_json(body)
    messages = fields.get("messages")
    prefix = expected_opening(fields.get("prompt")) or expected_opening(fields.get("input"))
    if messages and isinstance(messages, list):
        prefix = expected_user_text(messages)
    names = (
        fields.get("prompt_cache_key"),
        fields.get("user"),
        (fields.get("metadata") or {}).get("user_id"),
    )
    session = next((name for name in names if isinstance(name, str) and name), "")
    return RouteKey(fields["model"], fields.get("stream") is True, prefix, session, len(body))


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8 * CHARS) | st.text(
    st.sampled_from('a"\\\n\té漢😀/u'), max_size=20 * CHARS
)
parts = st.lists(
    st.one_of(
        st.fixed_dictionaries({"type": st.just("text"), "text": texts}),
        st.just({"image_url": PICTURE}),
    ),
    max_size=3,
)
messages = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "user", "assistant", "uſer", 1])},
        optional={"content": texts | parts | st.none()},
    ),
    min_size=1,
    max_size=4,
)
tokens = st.lists(st.integers(0, 200_000), min_size=1, max_size=4 * CHARS)
prompts = st.one_of(
    texts, st.lists(texts, min_size=1, max_size=3), tokens, st.lists(tokens, min_size=1, max_size=3)
)
entries = st.one_of(
    st.tuples(st.just("messages"), messages | st.none() | st.just("odd") | st.just(["odd"])),
    st.tuples(st.just("prompt"), prompts | st.none() | st.just({"id": "template"})),
    st.tuples(st.just("input"), prompts | messages | st.none()),
    st.tuples(st.just("stream"), st.sampled_from([True, False, None, 1, "true"])),
    st.tuples(st.sampled_from(["user", "prompt_cache_key"]), texts | st.none() | st.integers()),
    st.tuples(st.just("metadata"), st.fixed_dictionaries({}, optional={"user_id": texts | st.integers()})),
    st.tuples(st.just("model"), texts | st.integers()),
    st.tuples(
        st.sampled_from(["temperature", "Model", "tools"]),
        st.floats(allow_nan=False, allow_infinity=False) | st.just([{"model": "x"}]),
    ),
)


def escape(key: str) -> str:
    return "".join(f"\\u{ord(char):04x}" for char in key)


@given(
    st.lists(st.tuples(entries, st.booleans()), max_size=8), texts, st.booleans(), st.sampled_from([None, 1])
)
def test_agrees_with_the_parser_of_the_engine_on_duplicate_keys_escapes_and_unicode(
    fields, model, ascii_only, indent
):
    rows = [
        f'"{escape(key) if escaped else key}": {json.dumps(value, ensure_ascii=ascii_only, indent=indent)}'
        for (key, value), escaped in fields
    ]
    rows.append(f'"model": {json.dumps(model, ensure_ascii=ascii_only)}')
    body = ("{" + " ,\n".join(rows) + "}").encode()
    if isinstance(from_json(body).get("messages"), str) or from_json(body).get("messages") == ["odd"]:
        return  # the engine refuses it

    assert key_of(body) == expected_key(body)


@given(st.binary(max_size=60) | st.text(st.sampled_from('{}[]":,model1\\'), max_size=60).map(str.encode))
def test_any_bytes_give_a_key_or_a_clear_error(body):
    try:
        key_of(body)
    except RequestError as error:
        assert error.status == 400 and str(error).startswith("The body")


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b'{"messages": []}', "names no model"),
        (b'{"model": null}', "names no model"),
        (b'{"model": 5}', "names no model"),
        (b"[1]", "not a JSON object"),
        (b'{"model": "m"', "not JSON"),
        (b'{"model": "\xff"}', "not JSON"),
        (b'{"model": "m", "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
    ],
)
def test_names_the_problem_of_a_body_without_a_key(body, problem):
    with pytest.raises(RequestError, match=problem) as raised:
        key_of(body)

    assert raised.value.status == 400


MIB = 1 << 20
FIELDS = ["model", "stream", "messages", "prompt", "input", "user", "prompt_cache_key", "metadata", "other"]
# The beginning, the repeated middle and the end of values that cost a parser much more than their bytes.
SHAPES = {
    "lists": (b"[[]", b",[]", b"]"),
    "objects": (b"[{}", b",{}", b"]"),
    "numbers": (b"[1", b",1", b"]"),
    "strings": (b'["a"', b',"a"', b"]"),
    "a string and numbers": (b'["a"', b",1", b"]"),
    "keys": (b'{"a":1', b',"a":1', b"}"),
    "users": (b'{"user_id":[[]', b",[]", b"]}"),
    "parts of a role": (b'[{"role":[[]', b",[]", b"]}]"),
    "parts of a content": (b'[{"content":[{}', b",{}", b"]}]"),
    "parts of a text": (b'[{"content":[{"text":[{}', b",{}", b"]}]}]"),
    "a wide string": (b'"\\ud83d\\ude00', b"x", b'"'),
    "an escaped string": (b'"', b"\\u0041", b'"'),
    "digits": (b"1", b"1", b""),
}


def large_body(field: str, shape: str, size: int) -> bytes:
    begin, middle, end = SHAPES[shape]
    head = b'{"model":"m","%b":%b' % (field.encode(), begin)
    return head + middle * ((size - len(head) - len(end)) // len(middle)) + end + b"}"


PAIRS = [(field, shape) for field in FIELDS for shape in SHAPES]
# Each shape once and each field once.
TRIED_PAIRS = [(FIELDS[number % len(FIELDS)], shape) for number, shape in enumerate(SHAPES)]


def name_of(pair: tuple[str, str]) -> str:
    return "-".join(pair)


@pytest.mark.parametrize(("field", "shape"), tiered(PAIRS, *TRIED_PAIRS, more=PAIRS, ids=name_of))
def test_the_memory_for_a_body_is_bounded_whatever_its_values(field, shape):
    body = bytearray(large_body(field, shape, 4 * MIB))
    tracemalloc.start()
    try:
        read_key(body, {}, prefix_chars=100)
    except RequestError as error:
        assert error.status == 400
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()

    assert len(body) + peak <= 3 * len(body) + 4 * MIB


def test_the_names_that_are_kept_of_a_body_are_bounded():
    long = "x" * 100_000

    assert len(key_of({"model": "m", "user": long}).session) == MAX_SESSION_CHARS
    assert len(key_of({"model": "m", "metadata": {"user_id": long}}).session) == MAX_SESSION_CHARS
    with pytest.raises(RequestError, match="`model` is longer than 8192 bytes"):
        key_of({"model": long})


async def test_a_large_body_of_many_small_values_is_refused_and_counted(start_engine, start_router):
    engine = await start_engine()
    router = await start_router({"m": [engine]})

    body = large_body("prompt", "a string and numbers", 9 * MIB)
    async with router.session.post(f"{router.url}/v1/completions", data=body) as response:
        answer = await response.json()

    assert response.status == 400 and "at most 1,048,576 are allowed" in answer["error"]["message"]
    rejected = r'fairlead_router_rejected_total\{reason="too_many_values",sender="client"\}'
    assert await router.metric(rejected) == 1
    assert engine.received == []


def test_conversations_with_one_system_prompt_have_different_prefixes():
    system = {"role": "system", "content": "You are helpful."}

    first = key_of({"model": "m", "messages": [system, {"role": "user", "content": "one"}]})
    second = key_of({"model": "m", "messages": [system, {"role": "user", "content": "two"}]})

    assert (first.prefix, second.prefix) == ("one", "two")


def test_all_turns_of_a_conversation_have_one_prefix():
    turns = [{"role": "user", "content": "x" * 500}, {"role": "assistant", "content": "y"}]

    assert (
        key_of({"model": "m", "messages": turns}).prefix
        == key_of({"model": "m", "messages": turns[:1]}).prefix
    )


PICTURE_PARTS = {
    "chat": lambda data: {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}},
    "responses": lambda data: {"type": "input_image", "image_url": f"data:image/png;base64,{data}"},
    "messages": lambda data: {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": data},
    },
}


@pytest.mark.parametrize("api", PICTURE_PARTS)
@pytest.mark.parametrize("size", [100, 1_000_000])
def test_conversations_that_begin_with_different_pictures_have_different_prefixes(api, size):
    picture = "A" * size
    field = "input" if api == "responses" else "messages"

    def prefix(data: str, *further: dict) -> str:
        content = [{"type": "text", "text": "What is this?"}, PICTURE_PARTS[api](data)]
        body = json.dumps({"model": "m", field: [{"role": "user", "content": content}, *further]}).encode()
        return read_key(abridge(body), {}, CHARS).prefix

    prefixes = {prefix(data) for data in (picture, "B" + picture[1:], picture[:-1] + "B", picture + "AAAA")}

    assert len(prefixes) == 4
    answered = [{"role": "assistant", "content": "An A."}, {"role": "user", "content": "Which one?"}]
    assert prefix(picture, *answered) == prefix(picture)


@pytest.mark.parametrize(
    "body",
    [
        {"query": "q", "documents": ["d"]},
        {"text_1": "a", "text_2": "b"},
        {"tokens": [1, 2]},
        {"messages": [[{}], [{}]]},
    ],
)
def test_a_body_without_a_prompt_has_an_empty_prefix(body):
    assert key_of({"model": "m", **body}).prefix == ""


def test_the_header_names_the_session_before_the_body_does():
    body = {"model": "m", "prompt_cache_key": "cache", "user": "user", "metadata": {"user_id": "id"}}

    assert key_of(body, {b"x-session-id": b"header"}).session == "header"
    assert key_of(body).session == "cache"


@given(st.integers(1, 300), texts)
def test_the_prefix_has_as_many_characters_as_asked_for(chars, text):
    body = {"model": "m", "messages": [{"role": "user", "content": text}]}

    assert key_of(body, prefix_chars=chars).prefix == text[:chars]


@pytest.mark.parametrize(
    "hostile",
    [b'{"model": "m", "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", b'{"model": "\xff"}'],
    ids=["nested", "not UTF-8"],
)
async def test_a_hostile_body_gets_a_400_and_the_connection_stays_usable(start_engine, start_router, hostile):
    router = await start_router({"m": [await start_engine()]})
    for _ in range(2):
        async with router.session.post(f"{router.url}/v1/completions", data=hostile) as response:
            answer = await response.json()

        assert response.status == 400 and answer["error"]["code"] == "invalid_body"


@pytest.mark.parametrize(
    ("field", "seconds"),
    [(2.5, 2.5), (3, 3.0), (0, inf), (-1, inf), ("2.5", inf), (True, inf), (None, inf), ([2.5], inf)],
)
def test_the_timeout_of_a_body_is_a_number_over_zero(field, seconds):
    assert key_of({"model": "m", "timeout": field}).timeout == seconds


def test_a_timeout_of_many_digits_is_left_to_the_engine():
    assert key_of(b'{"model":"m","timeout":%b}' % (b"1" * 1000)).timeout == inf
