"""A server of a model that takes pictures, asked by the clients that people use."""

import asyncio
import base64
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import anthropic
import openai
import psutil
import pytest
from continued_streams import ask_to_resume, begin, resume
from engine_process import EngineProcess, running_engine
from picture_prompts import random_image
from PIL import Image
from router_process import start_process
from tiny_pictures import tiny_model

from engine_server.contract.wire.continuation import StreamTerms

QUESTION = "What is it?"
COLD = {"temperature": 0}
# Of the tiny model's tokenizer, whose tokens are bytes after three special ones.
LETTERS = [3 + 64 + index for index in range(26)]
UPRIGHT = random_image(1, 40, 30)
# What langchain-openai 1.7.4 and langchain-anthropic 1.7.10 send for a picture PNG. It is the same for parts in the
# form of LangChain, OpenAI and Anthropic, but for a URL without an object around it.
LANGCHAIN = json.loads((Path(__file__).parent / "langchain_pictures.json").read_text())


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> str:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return base64.b64encode(out.getvalue()).decode()


def part(data: str, kind: str = "png") -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": f"data:image/{kind};base64,{data}"}}


def asked(*parts: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [*parts, {"type": "text", "text": QUESTION}]}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model("smolvlm", tmp_path_factory.mktemp("smolvlm"))


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[EngineProcess]:
    with running_engine("--load-format=auto", model=str(folder), names=["smollm2"]) as server:
        server.wait_until_ready()
        yield server


@pytest.fixture(scope="module")
def client(server: EngineProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def tokens_of(client: openai.OpenAI, *parts: dict[str, Any]) -> tuple[list[int], int]:
    """Return the tokens of an answer about pictures, and the number of those of the prompt."""
    answer = client.chat.completions.create(
        model="smollm2",
        messages=asked(*parts),  # type: ignore[arg-type]
        max_tokens=8,
        temperature=0,
        extra_body={"return_token_ids": True, "ignore_eos": True},
    )
    assert answer.usage is not None
    return answer.choices[0].token_ids, answer.usage.prompt_tokens  # type: ignore[attr-defined]


def test_formats_of_one_picture_give_one_answer(client: openai.OpenAI) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees clockwise
    turned = UPRIGHT.transpose(Image.Transpose.ROTATE_90)
    upright = tokens_of(client, part(encoded(UPRIGHT)))
    assert tokens_of(client, part(encoded(UPRIGHT, "WEBP", lossless=True), "webp")) == upright
    assert tokens_of(client, part(encoded(turned, "PNG", exif=exif), "jpeg")) == upright
    assert tokens_of(client, part(encoded(turned))) != upright
    jpeg = encoded(UPRIGHT, "JPEG", quality=95)
    assert tokens_of(client, part(jpeg, "jpeg"))[1] == upright[1]


def test_responses_and_messages_read_the_picture_that_chat_reads(
    server: EngineProcess, client: openai.OpenAI
) -> None:
    data = encoded(UPRIGHT)
    chat = client.chat.completions.create(
        model="smollm2",
        messages=asked(part(data)),
        max_tokens=8,
        temperature=0,  # type: ignore[arg-type]
    )
    item = {"type": "input_image", "image_url": f"data:image/png;base64,{data}", "detail": "auto"}
    responses = client.responses.create(
        model="smollm2",
        input=[{"role": "user", "content": [item, {"type": "input_text", "text": QUESTION}]}],  # type: ignore[list-item]
        max_output_tokens=8,
        temperature=0,
    )
    block = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as other:
        asked_there: Any = [{"role": "user", "content": [block, {"type": "text", "text": QUESTION}]}]
        message = other.messages.create(model="smollm2", messages=asked_there, max_tokens=8, extra_body=COLD)
        counted = other.messages.count_tokens(model="smollm2", messages=asked_there)
    assert chat.usage is not None and responses.usage is not None
    assert responses.output_text == chat.choices[0].message.content == message.content[0].text  # type: ignore[union-attr]
    cached = message.usage.cache_read_input_tokens or 0
    assert message.usage.input_tokens + cached == counted.input_tokens == chat.usage.prompt_tokens
    assert responses.usage.input_tokens == chat.usage.prompt_tokens


def test_picture_of_a_tool_changes_the_answer(server: EngineProcess) -> None:
    def answer(image: Image.Image) -> str:
        source = {"type": "base64", "media_type": "image/png", "data": encoded(image)}
        result = {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "image", "source": source}]}
        turns: Any = [
            {"role": "user", "content": "Look."},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "look", "input": {}}]},
            {"role": "user", "content": [result]},
        ]
        with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
            message = client.messages.create(model="smollm2", messages=turns, max_tokens=8, extra_body=COLD)
        return message.content[0].text  # type: ignore[union-attr]

    assert answer(UPRIGHT) != answer(UPRIGHT.point(lambda value: 255 - value))


@pytest.mark.parametrize("place", LANGCHAIN)
def test_pictures_are_read_as_langchain_sends_them(server: EngineProcess, place: str) -> None:
    def texts(image: Image.Image) -> set[str]:
        requests = json.loads(json.dumps(LANGCHAIN[place]).replace("PNG", encoded(image)))
        return {text_in(server.post(request["path"], request["body"]).json) for request in requests}

    (upright,), (turned,) = texts(UPRIGHT), texts(UPRIGHT.rotate(180))
    assert upright != turned


def text_in(answer: dict[str, Any]) -> str:
    """Return the text of an answer of any API."""
    if "choices" in answer:
        return answer["choices"][0]["message"]["content"]
    (block,) = answer["content"] if "content" in answer else answer["output"][0]["content"]
    return block["text"]


def test_wrong_pictures_are_refused_by_name_and_the_engine_goes_on(client: openai.OpenAI) -> None:
    for data, reason in (
        (encoded(UPRIGHT)[:200], "can't be decoded"),
        (encoded(UPRIGHT, "BMP"), "no PNG, JPEG, WebP or GIF"),
        (encoded(Image.new("RGB", (1, 300))), "times the shorter side"),
    ):
        with pytest.raises(openai.BadRequestError, match=rf"messages.0.content.1: .*{reason}"):
            tokens_of(client, part(encoded(UPRIGHT)), part(data))
    assert tokens_of(client, part(encoded(UPRIGHT)))


def test_picture_that_the_encoder_cannot_take_is_refused_and_the_engine_goes_on(tmp_path: Path) -> None:
    model = tiny_model("mistral3", tmp_path)
    with running_engine("--load-format=auto", model=str(model), names=["smollm2"]) as server:
        server.wait_until_ready()
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            with pytest.raises(openai.BadRequestError, match="the model can't take the picture"):
                tokens_of(client, part(encoded(random_image(1, 1, 1))))  # one patch of merged ones
            assert tokens_of(client, part(encoded(UPRIGHT)))


def test_modalities_and_metrics_are_told(server: EngineProcess, client: openai.OpenAI) -> None:
    tokens_of(client, part(encoded(UPRIGHT)))
    (model,) = server.get("/v1/models").json["data"]
    assert model["input_modalities"] == ["text", "image"]
    assert server.metric("fairlead:pictures_total") > 0
    assert server.metric("fairlead:pictures_needed_total") > 0


def test_stream_is_continued_after_any_event_with_its_picture_alone(server: EngineProcess) -> None:
    fields = {
        "messages": asked(part(encoded(UPRIGHT))),
        "max_tokens": 8,
        "temperature": 0,
        "allowed_token_ids": LETTERS,
    }
    streams = {"picture": ("/v1/chat/completions", fields)}
    whole, groups = begin(server, "picture", streams)
    terms = StreamTerms(prompt_hash=groups[0].report.prompt_hash).value()
    for number in range(1, len(groups)):
        rest = resume(server, "picture", whole, groups[:number], terms, streams)
        left, right = (
            b"".join(group.events for group in part_of_it) for part_of_it in (rest, groups[number:])
        )
        assert text_of(left) == text_of(right)
    other = {
        "picture": ("/v1/chat/completions", {**fields, "messages": asked(part(encoded(UPRIGHT.rotate(180))))})
    }
    refused = ask_to_resume(server, "picture", whole, groups[:2], terms, other)
    assert refused.status == 409
    assert "other tokens or pictures" in refused.error["message"]


async def test_killed_engine_loses_no_stream_with_a_picture(folder: Path) -> None:
    flags = ("--load-format=auto", "--max-model-len=1024")
    body = {
        "model": "smollm2", "messages": asked(part(encoded(UPRIGHT))), "max_tokens": 400, "temperature": 0,
        "allowed_token_ids": LETTERS, "stream": True,
    }  # fmt: skip
    with (
        running_engine(*flags, model=str(folder), names=["smollm2"]) as first,
        running_engine(*flags, model=str(folder), names=["smollm2"]) as second,
    ):
        engines = [first, second]
        for engine in engines:
            engine.wait_until_ready()
        router, url, _ = await start_process(*(f"--endpoint=smollm2={engine.url}" for engine in engines))
        try:
            async with aiohttp.ClientSession() as session:
                async with session.post(f"{url}/v1/chat/completions", json=body) as answer:
                    expected = text_of(await answer.read())
                async with session.post(f"{url}/v1/chat/completions", json=body) as answer:
                    events = await answer.content.readuntil(b"\n\n")
                    busy = [engine for engine in engines if engine.metric("vllm:num_requests_running")]
                    for engine in busy or engines[:1]:
                        for process in (psutil.Process(engine.pid), engine.core):
                            process.kill()
                    events += await answer.read()
        finally:
            router.terminate()
            await asyncio.wait_for(router.wait(), 60)
    assert text_of(events) == expected
    assert len(expected) > 100


def text_of(body: bytes) -> str:
    """Return the text of a stream, which has to end as one that is whole."""
    lines = [line.removeprefix(b"data: ") for line in body.splitlines() if line.startswith(b"data: ")]
    assert lines[-1] == b"[DONE]", lines[-1]
    deltas = [json.loads(line)["choices"] for line in lines[:-1]]
    return "".join(choice["delta"].get("content") or "" for choices in deltas for choice in choices)
