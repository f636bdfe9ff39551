"""Conversations with pictures as LLM.chat renders them, beside transformers' own processors."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_pictures import BROKEN, FakePictures, data_url

from engine_server.config import ModelConfig
from engine_server.engine.conversation.chat import chat_prompts
from engine_server.engine.input.media_input import MediaInput
from engine_server.engine.input.processor import Processor
from engine_server.engine.input.tokenizer import PROCESSORS_TEMPLATE, backend_of, read_tokenizer
from engine_server.requests.errors import InvalidRequestError
from engine_server.requests.pictures import Picture
from engine_server.requests.prompts import TokensPrompt
from engine_server.requests.sampling_params import SamplingParams

ANY_VERSION = pytest.mark.transformers


def chat_prompt(processor: Processor, messages: Any, **options: Any) -> TokensPrompt:
    (prompt,) = chat_prompts(processor, messages, **options)
    return prompt


def processor_of(tokenizer: Any, pictures: Any, max_model_len: int = 4096) -> Processor:
    config = ModelConfig(
        model="m", path="m", tokenizer="m", served_model_name=["m"], dtype="float32", max_model_len=max_model_len,
        vocab_size=len(tokenizer), eos_token_ids=[1], seed=0,
    )  # fmt: skip
    processor = Processor(config, tokenizer)
    processor.media = MediaInput(backend_of(tokenizer), pictures)
    return processor


def png(width: int, height: int) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.new("RGB", (width, height), (width, height, 9)).save(file, "PNG")
    return file.getvalue()


class ReferencePictures(FakePictures):
    """Replaces a picture's token as transformers' processor does."""

    def __init__(self, processor: Any) -> None:
        super().__init__(
            processor.tokenizer.convert_ids_to_tokens(processor.image_token_id),
            ["<fake_token_around_image>", "<row_1_col_1>"],
            template_token=processor.image_token,
        )
        self._processor = processor

    def replacement(self, digest: str) -> str | None:
        return self._known.get(digest)

    def digest(self, picture: Picture) -> str:
        digest = super().digest(picture)
        ids = self._processor(text=self.template_token, images=[opened(picture.data)])["input_ids"][0]
        self._known[digest] = self._processor.tokenizer.decode(ids)
        return digest


def opened(data: bytes) -> Any:
    from PIL import Image

    return Image.open(io.BytesIO(data))


IMAGE = {"type": "image"}
ONE: list[list[Any]] = [["a"]]
THREE: list[list[Any]] = [[IMAGE, "a"], ["b"], ["c", IMAGE, IMAGE, "d"]]
STRINGS: list[list[Any]] = [["<image>", IMAGE, "a<image>"], ["<image>"], [IMAGE]]


# Idefics3's processor counts image tokens that are plain text.
@pytest.mark.parametrize(
    "family, turns",
    [
        ("llava", STRINGS),  # the reference sanitizes texts since 5.20
        *(
            pytest.param(family, turns, marks=ANY_VERSION)
            for family in ("llava", "idefics3", "aya_vision")
            for turns in (ONE, THREE)
        ),
    ],
)
def test_tokens_are_those_of_transformers_processor(
    family: Any, turns: list[list[Any]], tmp_path: Path
) -> None:
    import transformers
    from tiny_pictures import tiny_model

    reference = transformers.AutoProcessor.from_pretrained(tiny_model(family, tmp_path))
    sizes = iter([(30, 20), (80, 33), (200, 150)])
    ours: list[Any] = []
    theirs: list[Any] = []
    for number, parts in enumerate(turns):
        files = [png(*next(sizes)) if part is IMAGE else part for part in parts]
        role = "assistant" if number % 2 else "user"
        texts = [{"type": "text", "text": part} if isinstance(part, str) else part for part in files]
        ours.append(
            {
                "role": role,
                "content": [p if isinstance(p, dict) else {"type": "image", "image": p} for p in texts],
            }
        )
        theirs.append(
            {
                "role": role,
                "content": [
                    p if isinstance(p, dict) else {"type": "image", "image": opened(p)} for p in texts
                ],
            }
        )
    expected = reference.apply_chat_template(
        theirs,
        tokenize=True,
        return_dict=True,
        add_generation_prompt=True,
        sanitize_control_tokens=turns is STRINGS,
    )

    prompt = chat_prompt(processor_of(reference.tokenizer, ReferencePictures(reference)), ours)

    (ids,) = expected["input_ids"]
    assert prompt["prompt_token_ids"] == ids
    covered = [
        place
        for picture in prompt.get("pictures", [])
        for run in picture.runs
        for place in range(run.start, run.start + run.length)
    ]
    assert covered == [place for place, token_id in enumerate(ids) if token_id == reference.image_token_id]


@pytest.fixture(scope="module")
def tokenizer() -> Iterator[Any]:
    from tiny_pictures import TEMPLATE, tokenizer_with

    tokenizer = tokenizer_with(["<image>"], {})
    tokenizer.chat_template = TEMPLATE.replace("PICTURE", "<image>")
    return tokenizer


def ask(*parts: Any) -> list[Any]:
    return [{"role": "user", "content": list(parts)}]


def test_pictures_are_urls_and_bytes(tokenizer: Any) -> None:
    processor = processor_of(tokenizer, FakePictures("<image>"))
    parts = [
        "See:",
        {"type": "image_url", "image_url": {"url": data_url(b"ab"), "detail": "low"}},
        {"type": "image_url", "image_url": data_url(b"c")},
        {"type": "image", "image": b"d"},
        {"type": "text", "text": "<image>"},
    ]

    prompt = chat_prompt(processor, ask(*parts[1:]))

    assert prompt["prompt"] == "<s>user: <image><image><image><image>assistant: "
    assert [(one.picture.data, one.picture.low_detail) for one in prompt["pictures"]] == [
        (b"ab", True), (b"c", False), (b"d", False),
    ]  # fmt: skip
    image = tokenizer.convert_tokens_to_ids("<image>")
    assert prompt["prompt_token_ids"].count(image) == 4


def test_template_may_write_a_text_for_a_picture_that_is_no_token() -> None:
    from tiny_pictures import TEMPLATE, tokenizer_with

    tokenizer: Any = tokenizer_with(["[ROW]"], {})
    tokenizer.chat_template = TEMPLATE.replace("PICTURE", "<image>")
    processor = processor_of(tokenizer, FakePictures("[ROW]", template_token="<image>"))
    parts = [{"type": "text", "text": "[ROW] <image> "}, {"type": "image", "image": b"abc"}]

    token_ids = chat_prompt(processor, ask(*parts))["prompt_token_ids"]

    assert tokenizer.decode(token_ids) == "<s>user: [ROW] <image> [ROW][ROW][ROW]assistant: "
    assert token_ids.count(tokenizer.convert_tokens_to_ids("[ROW]")) == 3


@pytest.mark.parametrize(
    "role, part, message",
    [
        (
            "user",
            {"type": "image_url", "image_url": {"url": "https://a.b/c.png"}},
            r"messages.0.content.1: the URL of the picture is .* it takes a data: URL",
        ),
        ("user", {"type": "image", "image": BROKEN}, "messages.0.content.1: the picture is broken"),
        (
            "user",
            {"type": "image", "image": "a.png"},
            "messages.0.content.1 is .* it takes text parts, and pictures as image_url or bytes",
        ),
        ("user", {"type": "input_audio"}, "messages.0.content.1 is .* it takes text parts, and pictures as"),
        (
            "system",
            {"type": "image", "image": b"a"},
            "messages.0.content.1 is .* it takes text parts, and pictures in messages of the roles user and tool",
        ),
    ],
)
def test_other_parts_are_refused(tokenizer: Any, role: str, part: Any, message: str) -> None:
    messages = [{"role": role, "content": ["a", part]}]
    with pytest.raises(InvalidRequestError, match=message):
        chat_prompt(processor_of(tokenizer, FakePictures("<image>")), messages)


def test_too_many_pictures_are_refused(tokenizer: Any) -> None:
    processor = processor_of(tokenizer, FakePictures("<image>"))
    most = [{"type": "image", "image": b"a"}] * processor.config.max_pictures
    assert len(chat_prompt(processor, ask(*most))["pictures"]) == 64
    with pytest.raises(
        InvalidRequestError, match="there are 65 pictures in a request; at most 64 are allowed"
    ):
        chat_prompt(processor, ask(*most, most[0]))


def test_template_that_prints_no_pictures_is_named(tokenizer: Any) -> None:
    processor = processor_of(tokenizer, FakePictures("<image>"))
    template = "{% for m in messages %}{{ m.role }}{% endfor %}"
    with pytest.raises(InvalidRequestError, match="the chat template prints 0 places for 1 pictures"):
        chat_prompt(processor, ask({"type": "image", "image": b"a"}), template=template)


def test_model_of_text_refuses_pictures_also_where_its_template_takes_lists(tokenizer: Any) -> None:
    processor = processor_of(tokenizer, FakePictures("<image>"))
    processor.media = None
    with pytest.raises(InvalidRequestError, match="it takes text parts"):
        chat_prompt(processor, ask("a", {"type": "image_url", "image_url": {"url": data_url(b"a")}}))


def test_prompt_with_pictures_is_refused_where_it_has_no_use(tokenizer: Any) -> None:
    processor = processor_of(tokenizer, FakePictures("<image>"), max_model_len=60)
    prompt = chat_prompt(processor, ask({"type": "image", "image": b"abc"}))
    params = SamplingParams(max_tokens=1)

    processor.process(prompt, params)
    with pytest.raises(InvalidRequestError, match="a prompt adapter takes no pictures"):
        processor.process(prompt, params, num_virtual=1)
    with pytest.raises(InvalidRequestError, match="can't cut a prompt with pictures"):
        processor.process(prompt, SamplingParams(truncate_prompt_tokens=5))
    with pytest.raises(InvalidRequestError, match="a beam search takes no pictures"):
        processor.tokens(prompt)
    with pytest.raises(InvalidRequestError, match="stands for a picture"):
        processor.process({**prompt, "pictures": []}, params)
    long = chat_prompt(processor, ask({"type": "image", "image": bytes(60)}))
    with pytest.raises(
        InvalidRequestError, match="60 of them for pictures, which --mm-processor-kwargs makes"
    ):
        processor.process(long, params)
    processor.media = None
    with pytest.raises(InvalidRequestError, match="the model takes text alone"):
        processor.process(prompt, params)


def test_text_has_no_token_of_a_picture(tokenizer: Any) -> None:
    processor = processor_of(tokenizer, FakePictures("<image>"))
    _, token_ids, _ = processor.process("a<image>b", SamplingParams())
    assert tokenizer.convert_tokens_to_ids("<image>") not in token_ids
    assert tokenizer.decode(token_ids) == "a<image>b"


def test_tokenizer_without_a_template_takes_its_processors(tokenizer: Any, tmp_path: Path) -> None:
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "chat_template.jinja").unlink()
    assert read_tokenizer(str(tmp_path), False).chat_template is None
    (tmp_path / PROCESSORS_TEMPLATE).write_text('{"chat_template": "{{ messages }}"}')
    assert read_tokenizer(str(tmp_path), False).chat_template == "{{ messages }}"
