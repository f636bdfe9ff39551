"""Images, sounds and files in conversations with a model that takes text alone, in each API."""

from collections.abc import Iterator
from typing import Any

import pytest
from conversation_turns import CHAT, MESSAGES, RESPONSES, call_and_result, text, user
from local_server import LocalServer, serving

URL = "data:image/png;base64,AAAA"
# A picture and a file of each API.
PICTURES: dict[str, dict[str, Any]] = {
    CHAT: {"type": "image_url", "image_url": {"url": URL}},
    MESSAGES: {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
    RESPONSES: {"type": "input_image", "image_url": URL, "detail": "auto"},
}
FILES: dict[str, dict[str, Any]] = {
    CHAT: {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:"}},
    MESSAGES: {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": ""}},
    RESPONSES: {"type": "input_file", "filename": "a.pdf", "file_data": "data:"},
}


def ask(server: LocalServer, path: str, turns: list[dict[str, Any]], **fields: Any) -> Any:
    limit = "max_output_tokens" if path == RESPONSES else "max_tokens"
    field = "input" if path == RESPONSES else "messages"
    return server.post(path, {"model": "smollm2", limit: 1, field: turns, **fields})


def prompt_of(server: LocalServer) -> str:
    tokenizer = server.host.model.tokenizer
    assert tokenizer is not None
    return str(tokenizer.decode(server.core.requests[-1].token_ids()))


ANSWER = {"role": "assistant", "content": "A cat."}
each_api = pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])


@each_api
def test_media_of_earlier_turns_are_replaced_by_notes_and_named(scripted: LocalServer, path: str) -> None:
    turns = [user(path, "See:", PICTURES[path], FILES[path]), ANSWER, user(path, "And now?")]

    answer = ask(scripted, path, turns)

    assert answer.status == 200, answer.body
    file = "document" if path == MESSAGES else "file"
    assert f"user\nSee:\n[image omitted]\n[{file} omitted]<|im_end|>" in prompt_of(scripted)
    field = "input" if path == RESPONSES else "messages"
    assert answer.headers["x-fairlead-ignored"] == ", ".join(
        f"{field}.0.content.{number} ({part[path]['type']})" for number, part in ((1, PICTURES), (2, FILES))
    )


@each_api
def test_media_of_a_tools_result_are_replaced_although_they_are_the_newest(
    scripted: LocalServer, path: str
) -> None:
    turns = [user(path, "Look."), *call_and_result(path, text(path, "Taken."), PICTURES[path])]

    answer = ask(scripted, path, turns)

    assert answer.status == 200, answer.body
    assert "<tool_response>\nTaken.\n[image omitted]\n</tool_response>" in prompt_of(scripted)
    assert PICTURES[path]["type"] in answer.headers["x-fairlead-ignored"]


@each_api
def test_media_of_the_newest_turn_are_refused_by_name(scripted: LocalServer, path: str) -> None:
    turns = [user(path, "Hi"), ANSWER, user(path, "See:", PICTURES[path]), user(path, "What is it?")]

    answer = ask(scripted, path, turns)

    assert answer.status == 400
    field = "input" if path == RESPONSES else "messages"
    part = f"{field}.2.content.1 ({PICTURES[path]['type']})"
    assert (
        answer.error["message"] == f"{part} is a part that the model can't take: the model takes text alone"
    )


def test_media_before_an_answer_that_is_continued_are_of_the_newest_turn(scripted: LocalServer) -> None:
    turns = [user(MESSAGES, PICTURES[MESSAGES]), {"role": "assistant", "content": "It is"}]
    assert ask(scripted, MESSAGES, turns).status == 400


@pytest.fixture(scope="module", params=["refuse", "omit"])
def uniform(request: pytest.FixtureRequest) -> Iterator[tuple[str, LocalServer]]:
    with serving(f"--unsupported-media={request.param}") as server:
        yield request.param, server


@each_api
def test_flag_makes_it_the_same_for_all_turns(uniform: tuple[str, LocalServer], path: str) -> None:
    policy, server = uniform
    earlier = ask(server, path, [user(path, PICTURES[path]), ANSWER, user(path, "And now?")])
    newest = ask(server, path, [user(path, "See:", PICTURES[path])])
    assert [earlier.status, newest.status] == ([400, 400] if policy == "refuse" else [200, 200])


def test_batch_names_the_conversation(scripted: LocalServer) -> None:
    conversations = [[user(CHAT, "Hi")], [user(CHAT, PICTURES[CHAT])]]
    answer = ask(scripted, f"{CHAT}/batch", conversations)  # type: ignore[arg-type]
    assert (answer.status, answer.error["param"]) == (400, "messages.1.0.content.0")


def test_tokenized_conversation_has_no_media_in_its_newest_turn(scripted: LocalServer) -> None:
    turns = [user(CHAT, "A picture."), ANSWER, user(CHAT, PICTURES[CHAT])]
    answer = scripted.post("/tokenize", {"model": "smollm2", "messages": turns})
    assert (answer.status, answer.error["param"]) == (400, "messages.2.content.0")


@each_api
def test_part_of_an_unknown_type_is_a_note_in_earlier_turns_and_refused_in_the_newest(
    scripted: LocalServer, path: str
) -> None:
    unknown = {"type": "hologram", "data": "..."}
    field = "input" if path == RESPONSES else "messages"

    answer = ask(scripted, path, [user(path, "See:", unknown), ANSWER, user(path, "And now?")])
    assert answer.status == 200, answer.body
    assert "user\nSee:\n[hologram omitted]<|im_end|>" in prompt_of(scripted)
    assert answer.headers["x-fairlead-ignored"] == f"{field}.0.content.1 (hologram)"

    refused = ask(scripted, path, [user(path, "See:", unknown)])
    assert refused.status == 400
    assert (
        f"{field}.0.content.1 (hologram) is a part that the model can't take"
        in refused.json["error"]["message"]
    )
