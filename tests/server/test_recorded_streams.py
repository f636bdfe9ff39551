"""Streams as clients receive them, of each API and of each format of answers, compared with those in snapshots/.

Engines with the same `RENDERING` continue each other's streams, so a stream that changes takes another number.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from asked import CHAT, MESSAGES, PATHS, RESPONSES, body_of
from local_server import LocalServer
from server.conversation.recorded_answers import FORMATS, RECORDINGS, TOOLS, layout_with
from snapshots import assert_unchanged

from engine_server.contract.wire.continuation import RENDERING
from engine_server.server.engine_host import EngineHost
from engine_server.server.settings import ApiSettings

SNAPSHOTS = Path(__file__).parent / "snapshots"
HEADING = "RENDERING = "
TITLE = "### "
COMPLETIONS = "completions"
CREATED = SimpleNamespace(time=lambda: 1_700_000_000.0)
TOKENS_PER_EVENT = 8
TURNS = "{{ tools }}{% for message in messages %}{{ message.content }}{% endfor %}"
HERMES = RECORDINGS["hermes"].text
FUNCTIONS = {
    tool["function"]["name"]: tool["function"].get("parameters", {"type": "object"}) for tool in TOOLS
}
USAGE = {"include_usage": True, "continuous_usage_stats": True}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
# The answer, and the fields of the request, by API and by what the stream shows.
CONVERSATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "text": ("Ahoy, matey. The sky is blue.", {}),
    "reasoning, text and calls": (HERMES, {"tools": FUNCTIONS}),
    "reasoning and calls as text": (HERMES, {}),
    "a demanded call": (HERMES[HERMES.index("<tool_call>") :], {"tools": FUNCTIONS, "choice": "get_weather"}),
    "a form": ('{"city": "Rome"}', {"schema": SCHEMA}),
    "reasoning that the limit ends": (HERMES, {"tools": FUNCTIONS, "limit": 5}),
    "a call that the limit ends": (HERMES, {"tools": FUNCTIONS, "limit": 60}),
    "a stop string": ("Ahoy, matey. The sky is blue.", {"stop": ["sky"]}),
}
OF_CHAT: dict[str, tuple[str, dict[str, Any]]] = {
    "usage": ("Ahoy, matey.", {"stream_options": USAGE}),
    "log-probabilities of two choices": ("Ahoy, matey.", {"n": 2, "logprobs": True, "top_logprobs": 2}),
    "token ids": ("Ahoy, matey.", {"return_token_ids": True}),
}
OF_COMPLETIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "text": ("Ahoy, matey. The sky is blue.", {}),
    "usage": ("Ahoy, matey.", {"stream_options": USAGE}),
    "two prompts with log-probabilities": ("Ahoy.", {"prompt": ["One", "Two"], "logprobs": 2}),
    "echo and token ids": ("Ahoy.", {"echo": True, "return_token_ids": True}),
    "a limit": ("Ahoy, matey. The sky is blue.", {"max_tokens": 3}),
    "a stop string": ("Ahoy, matey. The sky is blue.", {"stop": ["sky"]}),
}
CASES = {
    CHAT: CONVERSATIONS | OF_CHAT,
    MESSAGES: CONVERSATIONS,
    RESPONSES: {name: case for name, case in CONVERSATIONS.items() if name != "a stop string"},
    COMPLETIONS: OF_COMPLETIONS,
}


@pytest.fixture
def recorded(scripted: LocalServer) -> Iterator[LocalServer]:
    """The scripted server with a clock that stands, and several tokens in each event."""
    core = scripted.core.scripted
    with (
        mock.patch("engine_server.server.api.read_request.time", CREATED),
        mock.patch.object(core, "tokens_per_step", TOKENS_PER_EVENT),
    ):
        yield scripted


@contextmanager
def serving_with(server: LocalServer, form: str, **settings: object) -> Iterator[None]:
    """Let the server read answers of a format, with other settings of the APIs, as a model with a fixed fingerprint."""
    model = server.host.model
    changed = replace(
        model,
        layout=layout_with(deepcopy(model.tokenizer), form),
        settings=replace(model.settings, **settings),
        fingerprint="fingerprint",
    )
    with mock.patch.object(EngineHost, "model", changed):
        yield


def stream(server: LocalServer, api: str, said: str, **given: Any) -> str:
    """Return the body of a stream in which the model says a text."""
    if api == COMPLETIONS:
        path, body = (
            "/v1/completions",
            {"model": "smollm2", "prompt": "The capital of", "max_tokens": 400, **given},
        )
    else:
        path, body = PATHS[api], body_of(api, **given)
    with server.saying(said):
        answer = server.post(path, body | {"stream": True, "request_id": "1"})
    assert answer.status == 200, answer.body
    return answer.body.decode()


def streams_of(server: LocalServer, api: str, **settings: object) -> dict[str, str]:
    with serving_with(server, "hermes", **settings):
        return {name: stream(server, api, said, **given) for name, (said, given) in CASES[api].items()}


@pytest.mark.parametrize("api", CASES)
def test_streams_of_an_api_are_unchanged(recorded: LocalServer, api: str) -> None:
    assert_streams_unchanged(SNAPSHOTS / f"streams_of_{api}.txt", streams_of(recorded, api))


def test_streams_of_each_format_are_unchanged(recorded: LocalServer) -> None:
    streams = {}
    for name in FORMATS:
        recording = RECORDINGS[name]
        opening = f"{{% if add_generation_prompt %}}{recording.start.opening}{{% endif %}}"
        with serving_with(recorded, name, trust_request_chat_template=True):
            streams[name] = stream(
                recorded, CHAT, recording.text, tools=FUNCTIONS, chat_template=TURNS + opening
            )
    assert_streams_unchanged(SNAPSHOTS / "streams_of_formats.txt", streams)


def test_the_switches_in_streams_are_those_that_change_one(recorded: LocalServer) -> None:
    default = ApiSettings()
    switches = {setting.name for setting in fields(ApiSettings) if isinstance(setting.default, bool)}

    def streams(**settings: object) -> list[dict[str, str]]:
        return [streams_of(recorded, api, **settings) for api in CASES]

    unchanged = streams()
    found = {name for name in switches if streams(**{name: not getattr(default, name)}) != unchanged}

    assert found == switches & set(default.of_streams())


@pytest.mark.parametrize("update", ["", "1"])
def test_a_changed_stream_needs_another_rendering(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, update: str
) -> None:
    file = tmp_path / "streams.txt"
    file.write_text(recording_of({"a": "data: 1\n\n", "b": "data: 2\n\n"}, rendering=7))
    monkeypatch.setenv("UPDATE_SNAPSHOTS", update)

    with pytest.raises(pytest.fail.Exception, match=r"(?s)'b': 'data: 2' became 'data: 3'.*RENDERING = 8"):
        assert_streams_unchanged(file, {"a": "data: 1\n\n", "b": "data: 3\n\n"}, rendering=7)

    assert read_streams(file) == (7, {"a": "data: 1\n\n", "b": "data: 2\n\n"})


@pytest.mark.parametrize(
    ("streams", "rendering"),
    [({"a": "data: 2\n\n"}, 8), ({"a": "data: 1\n\n"}, 8), ({"a": "data: 1\n\n", "b": "data: 2\n\n"}, 7)],
    ids=["another stream and rendering", "another rendering", "one more stream"],
)
def test_streams_are_recorded_where_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, streams: dict[str, str], rendering: int
) -> None:
    file = tmp_path / "streams.txt"
    file.write_text(recording_of({"a": "data: 1\n\n"}, rendering=7))
    monkeypatch.delenv("UPDATE_SNAPSHOTS", raising=False)
    with pytest.raises(pytest.fail.Exception, match="UPDATE_SNAPSHOTS=1"):
        assert_streams_unchanged(file, streams, rendering)
    monkeypatch.setenv("UPDATE_SNAPSHOTS", "1")

    assert_streams_unchanged(file, streams, rendering)

    assert read_streams(file) == (rendering, streams)


def assert_streams_unchanged(file: Path, streams: Mapping[str, str], rendering: int = RENDERING) -> None:
    """Compare streams by name with those in a file, or write the file.

    It is not written where a stream has changed and `rendering` has not.
    """
    recorded, before = read_streams(file)
    changed = [name for name, stream in streams.items() if before.get(name, stream) != stream]
    if changed and recorded == rendering:
        (name, *_) = changed
        pytest.fail(
            f"{len(changed)} streams changed. {name!r}: {first_change(before[name], streams[name])}\n"
            f"If that is intended, set {HEADING}{rendering + 1} in the contract's continuation.py, so that no engine "
            "continues a stream of one that writes it as before, and record the streams with UPDATE_SNAPSHOTS=1.",
            pytrace=False,
        )
    assert_unchanged(file, recording_of(streams, rendering))


def recording_of(streams: Mapping[str, str], rendering: int) -> str:
    sections = [f"{TITLE}{name}\n\n{stream}" for name, stream in streams.items()]
    return f"{HEADING}{rendering}\n" + "".join(sections)


def read_streams(file: Path) -> tuple[int | None, dict[str, str]]:
    """Return the rendering and the streams of a file; None and no streams if there is no file."""
    if not file.exists():
        return None, {}
    heading, *sections = re.split(f"^{TITLE}", file.read_text(), flags=re.MULTILINE)
    pairs = (section.partition("\n\n") for section in sections)
    return int(heading.removeprefix(HEADING)), {name: stream for name, _, stream in pairs}


def first_change(before: str, now: str) -> str:
    """Return the first line that differs, as it was and as it is."""
    lines = zip([*before.splitlines(), ""], [*now.splitlines(), ""], strict=False)
    return next((f"{old!r} became {new!r}" for old, new in lines if old != new), "")
