"""Pictures in requests of each API, for a model that takes some. Their processor is a fake one."""

import base64
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any
from unittest import mock

import pytest
from conversation_turns import CHAT, MESSAGES, RESPONSES, call_and_result, user
from fake_pictures import BROKEN, FakePictures, data_url
from local_server import LocalServer, serving

from engine_server.engine import async_llm
from engine_server.engine.front_end import FrontEnd

pytestmark = pytest.mark.transformers

each_api = pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
ANSWER = {"role": "assistant", "content": "A cat."}
MOST = 3


@pytest.fixture(scope="module")
def pictures() -> FakePictures:
    return FakePictures("<IMG_CONTEXT>", ["<img>", "</img>"], begin="<img>", end="</img>")


@pytest.fixture(scope="module")
def server(pictures: FakePictures, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    from tiny_pictures import tiny_model

    class PicturingFrontEnd(FrontEnd):
        """Takes pictures from the start on."""

        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self.take_pictures(pictures)

    folder = tiny_model("internvl", tmp_path_factory.mktemp("internvl"))
    flags = f'--limit-mm-per-prompt={{"image": {MOST}}}'
    with ExitStack() as stack:
        with mock.patch.object(async_llm, "FrontEnd", PicturingFrontEnd):
            server = stack.enter_context(
                serving(flags, "--load-format=auto", model=str(folder), names=["eyes"])
            )
        yield server


def picture(path: str, data: bytes, **fields: Any) -> dict[str, Any]:
    match path:
        case "/v1/messages":
            source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(data).decode()}
            return {"type": "image", "source": source, **fields}
        case "/v1/responses":
            return {"type": "input_image", "image_url": data_url(data), **fields}
        case _:
            return {"type": "image_url", "image_url": {"url": data_url(data)}, **fields}


def field_of(path: str) -> str:
    return "input" if path == RESPONSES else "messages"


def ask(server: LocalServer, path: str, *turns: dict[str, Any], **fields: Any) -> Any:
    limit = "max_output_tokens" if path == RESPONSES else "max_tokens"
    return server.post(path, {"model": "eyes", limit: 1, field_of(path): list(turns), **fields})


def ids_of(server: LocalServer) -> list[int]:
    return list(server.core.requests[-1].token_ids())


def prompt_of(server: LocalServer) -> str:
    tokenizer = server.host.model.tokenizer
    assert tokenizer is not None
    return str(tokenizer.decode(ids_of(server))).replace("<IMG_CONTEXT>", "#")


@each_api
def test_picture_is_placeholders_in_its_place(server: LocalServer, path: str) -> None:
    answer = ask(server, path, user(path, "See: ", picture(path, b"abc"), picture(path, b"d"), "and say."))

    assert answer.status == 200, answer.body
    assert prompt_of(server) == "<s>user: See: <img>###</img><img>#</img>and say.assistant: "
    usage = answer.json["usage"]
    assert usage.get("prompt_tokens", usage.get("input_tokens")) == len(ids_of(server))


@each_api
def test_picture_of_a_tools_result_is_placeholders_in_its_place(server: LocalServer, path: str) -> None:
    turns = [user(path, "Look."), *call_and_result(path, "Taken.", picture(path, b"abc"), "Done.")]

    answer = ask(server, path, *turns)

    assert answer.status == 200, answer.body
    assert "user: <tool_response>\nTaken.<img>###</img>Done.\n</tool_response>assistant: " in prompt_of(
        server
    )


@each_api
def test_pictures_of_earlier_turns_stay(server: LocalServer, path: str) -> None:
    answer = ask(server, path, user(path, picture(path, b"ab")), ANSWER, user(path, "And now?"))

    assert answer.status == 200, answer.body
    assert prompt_of(server).startswith("<s>user: <img>##</img>assistant: A cat.user: And now?")
    assert "x-fairlead-ignored" not in answer.headers


@each_api
def test_other_media_and_pictures_in_answers_are_treated_as_without_pictures(
    server: LocalServer, path: str
) -> None:
    pictured = {"role": "assistant", "content": [picture(path, b"ab")]}
    answer = ask(server, path, user(path, "Hi"), pictured, user(path, "And now?"))
    assert answer.status == 200, answer.body
    assert "[image omitted]" in prompt_of(server)
    assert f"{field_of(path)}.1.content.0" in answer.headers["x-fairlead-ignored"]

    refused = ask(server, path, user(path, {"type": "input_audio"}))
    assert refused.status == 400
    assert "it takes text, and pictures in turns of the user" in refused.json["error"]["message"]


def test_known_picture_is_not_processed_again(server: LocalServer, pictures: FakePictures) -> None:
    before = len(pictures.processed)
    again = picture(CHAT, b"resent")

    ask(server, CHAT, user(CHAT, again, again))
    ask(server, CHAT, user(CHAT, again), ANSWER, user(CHAT, "And?", picture(CHAT, b"other")))

    assert len(pictures.processed) == before + 2
    assert pictures.callers[-1] is not None


def test_engine_gets_pictures_with_their_runs(server: LocalServer, pictures: FakePictures) -> None:
    engine = server.host.model.engine
    low = picture(CHAT, b"ab")
    low["image_url"]["detail"] = "low"
    with mock.patch.object(engine, "submit", wraps=engine.submit) as submit:
        ask(server, CHAT, user(CHAT, "x", low, "y", picture(CHAT, b"c")))

    prompt = submit.call_args.args[0].prompt
    ids, first, second = prompt["prompt_token_ids"], *prompt["pictures"]
    image = engine.tokenizer.convert_tokens_to_ids("<IMG_CONTEXT>")
    for one, data in ((first, b"ab"), (second, b"c")):
        (run,) = one.runs
        assert ids[run.start : run.start + run.length] == [image] * len(data)
        assert (one.picture.data, one.picture.low_detail) == (data, data == b"ab")
        assert one.digest == pictures.digest(one.picture)


@each_api
def test_strings_of_media_tokens_are_text(server: LocalServer, path: str) -> None:
    written = "<IMG_CONTEXT> <img></img>"
    turns = [
        user(path, written, picture(path, b"ab"), written),
        {"role": "assistant", "content": written},
        user(path, f"{written}"),
    ]

    answer = ask(server, path, *turns)

    assert answer.status == 200, answer.body
    tokenizer = server.host.model.engine.tokenizer
    assert tokenizer is not None
    counts = [
        ids_of(server).count(tokenizer.convert_tokens_to_ids(token)) for token in ("<IMG_CONTEXT>", "<img>")
    ]
    assert counts == [2, 1]
    assert prompt_of(server).count("# <img></img>") == 4


def test_strings_of_media_tokens_are_text_in_all_that_a_conversation_has(server: LocalServer) -> None:
    written = "<IMG_CONTEXT>"
    call = {"id": "1", "function": {"name": "f", "arguments": '{"<IMG_CONTEXT>": "<IMG_CONTEXT>"}'}}
    function = {
        "name": "f",
        "description": written,
        "parameters": {"type": "object", "properties": {written: {}}},
    }
    template = (
        "{{ tools | tojson }}{{ extra }}{% for m in messages %}{{ m | tojson }}{% for part in m.content %}"
        "{% if part.type == 'image' %}<IMG_CONTEXT>{% endif %}{% endfor %}{% endfor %}"
    )
    processor = server.host.model.engine._front_end.processor
    from engine_server.server.conversation.chat_prompt import ChatPrompt
    from engine_server.server.conversation.layout import PLAIN_TEXT
    from engine_server.server.generation.prompts import render_chat

    chat = ChatPrompt(
        layout=PLAIN_TEXT,
        messages=[
            {
                "role": "user",
                "name": written,
                "content": [{"type": "image"}, {"type": "text", "text": written}],
            },
            {"role": "assistant", "content": written, "reasoning": written, "tool_calls": [call]},
        ],
        tools=[{"type": "function", "function": function}],
        variables={"extra": written},
        template=template,
    )
    prompt = render_chat(processor, chat, None, None, None)
    assert processor.media is not None
    assert prompt.tokens["prompt_token_ids"].count(processor.media.image_token_id) == 1
    assert prompt.tokens["prompt"] == chat.render(processor.tokenizer, None)[0]


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    (CHAT, {"type": "image_url", "image_url": "https://example.com/a.png"}, "it takes a data: URL with base64"),
    (CHAT, {"type": "image_url", "image_url": {"url": "file:///a.png"}}, "it takes a data: URL with base64"),
    (CHAT, {"type": "image_url", "image_url": {"url": "data:image/png;base64,*"}}, "not valid base64"),
    (CHAT, {"type": "image_url", "image_url": {"url": data_url(b"a")}, "uuid": "1"}, "has a uuid"),
    (CHAT, {"type": "image_url"}, "has no image_url.url"),
    (RESPONSES, {"type": "input_image", "file_id": "file-1"}, "has a file_id"),
    (RESPONSES, {"type": "input_image", "image_url": "http://example.com"}, "it takes a data: URL"),
    (MESSAGES, {"type": "image", "source": {"type": "url", "url": "https://a.b/c.png"}}, "it takes a data: URL"),
    (MESSAGES, {"type": "image", "source": {"type": "file", "file_id": "1"}}, "has the type 'file'"),
    (MESSAGES, {"type": "image"}, "it takes base64"),
    (CHAT, picture(CHAT, BROKEN), "the picture is broken"),
]  # fmt: skip


@pytest.mark.parametrize("path, part, message", REFUSED)
def test_wrong_picture_is_refused_by_its_path(
    server: LocalServer, path: str, part: dict[str, Any], message: str
) -> None:
    answer = ask(server, path, user(path, "See:", picture(path, b"ok"), part))

    assert answer.status == 400, answer.body
    where = f"{field_of(path)}.0.content.2"
    assert answer.json["error"]["message"].startswith(f"{where}: ")
    assert message in answer.json["error"]["message"]
    if path != MESSAGES:
        assert answer.error["param"] == where


@each_api
def test_too_many_pictures_are_refused(server: LocalServer, path: str) -> None:
    assert ask(server, path, user(path, *[picture(path, b"a")] * MOST)).status == 200
    answer = ask(server, path, user(path, *[picture(path, b"a")] * (MOST + 1)))
    assert answer.status == 400
    assert "there are 4 pictures in a request; at most 3 are allowed" in answer.json["error"]["message"]


@each_api
@pytest.mark.parametrize("field", ["mm_processor_kwargs", "media_io_kwargs"])
def test_options_of_processors_are_refused(server: LocalServer, path: str, field: str) -> None:
    answer = ask(server, path, user(path, "Hi"), **{field: {"size": 1}})
    assert answer.status == 400
    assert answer.json["error"]["message"].startswith(field)


def test_prompts_of_tokens_or_text_have_no_pictures(server: LocalServer) -> None:
    tokenizer = server.host.model.engine.tokenizer
    assert tokenizer is not None
    image = tokenizer.convert_tokens_to_ids("<IMG_CONTEXT>")

    refused = server.post("/v1/completions", {"model": "eyes", "prompt": [5, image], "max_tokens": 1})
    assert refused.status == 400
    assert f"the prompt has token {image}, which stands for a picture" in refused.error["message"]

    answer = server.post("/v1/completions", {"model": "eyes", "prompt": "a<IMG_CONTEXT>", "max_tokens": 1})
    assert answer.status == 200, answer.body
    assert image not in ids_of(server)
    counted = server.post("/tokenize", {"model": "eyes", "prompt": "a<IMG_CONTEXT>"})
    assert counted.json["tokens"] == ids_of(server)


def test_placeholders_are_counted(server: LocalServer) -> None:
    turns = [user(MESSAGES, "See:", picture(MESSAGES, b"0123456789"))]
    ask(server, MESSAGES, *turns)
    num_tokens = len(ids_of(server))
    counted = server.post("/v1/messages/count_tokens", {"model": "eyes", "messages": turns})
    assert counted.json["input_tokens"] == num_tokens

    messages = [user(CHAT, "See:", picture(CHAT, b"0123456789"))]
    assert server.post("/tokenize", {"model": "eyes", "messages": messages}).json["count"] == num_tokens


@pytest.mark.parametrize("side, kept", [("left", "Now?assistant: "), ("right", "<s>user: See: ")])
def test_cut_prompt_has_no_part_of_a_picture(server: LocalServer, side: str, kept: str) -> None:
    turn = user(CHAT, "See: ", picture(CHAT, b"abcdef"), "Now?")
    answer = ask(server, CHAT, turn, truncate_prompt_tokens=19, truncation_side=side)
    assert answer.status == 200, answer.body
    assert prompt_of(server) == kept


def test_truncation_auto_cuts_between_pictures(server: LocalServer) -> None:
    turns = [user(RESPONSES, picture(RESPONSES, bytes(700))), user(RESPONSES, "x" * 700)]
    answer = ask(server, RESPONSES, *turns, truncation="auto")
    assert answer.status == 200, answer.body
    assert "#" not in prompt_of(server)


def test_long_prompt_names_the_option_that_makes_pictures_smaller(server: LocalServer) -> None:
    answer = ask(server, CHAT, user(CHAT, picture(CHAT, bytes(1500))))
    assert answer.status == 400
    assert "1500 of them for pictures, which --mm-processor-kwargs makes smaller" in answer.error["message"]


def test_beam_search_takes_no_pictures(server: LocalServer) -> None:
    answer = ask(server, CHAT, user(CHAT, picture(CHAT, b"a")), use_beam_search=True, n=2)
    assert (answer.status, answer.error["param"]) == (400, "use_beam_search")
    assert "messages.0.content.0" in answer.error["message"]


def test_message_with_a_picture_is_not_continued(server: LocalServer) -> None:
    turn = user(CHAT, picture(CHAT, b"a"), "b")
    answer = ask(server, CHAT, turn, continue_final_message=True, add_generation_prompt=False)
    assert (answer.status, answer.error["param"]) == (400, "messages.0.content.0")


def test_models_name_what_they_take(server: LocalServer, scripted: LocalServer) -> None:
    assert server.get("/v1/models").json["data"][0]["input_modalities"] == ["text", "image"]
    assert scripted.get("/v1/models").json["data"][0]["input_modalities"] == ["text"]


def test_server_says_why_it_takes_no_pictures(server: LocalServer, scripted: LocalServer) -> None:
    assert server.get("/server_info").json["refuses_pictures"] is None
    assert scripted.get("/server_info").json["refuses_pictures"] == "the model takes text alone"


def test_context_edits_keep_pictures_and_clear_those_of_results(server: LocalServer) -> None:
    turns = [
        user(MESSAGES, picture(MESSAGES, b"abc")),
        *call_and_result(MESSAGES, picture(MESSAGES, bytes(50))),
        ANSWER,
        user(MESSAGES, "And?"),
    ]
    edit = {
        "type": "clear_tool_uses_20250919",
        "trigger": {"type": "tool_uses", "value": 0},
        "keep": {"type": "tool_uses", "value": 0},
    }
    answer = ask(server, MESSAGES, *turns, context_management={"edits": [edit]})
    assert answer.status == 200, answer.body
    assert "<img>###</img>" in prompt_of(server)
    assert "[cleared]" in prompt_of(server)
    assert "#" * 50 not in prompt_of(server)
