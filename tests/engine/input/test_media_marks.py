"""Strings of media tokens in texts of people, as plain text."""

from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from engine_server.engine.input.marked_text import MarkedTextEncoder
from engine_server.engine.input.media_marks import MediaMarks

MEDIA = ("<image>", "<image>s", "[IMG_BREAK]")
TEMPLATE = "<s>{% for m in messages %}<image>{{ m.content }}{% if m.x %}{{ m.x | tojson }}{% endif %}</s>{% endfor %}"


def byte_tokenizer(add_prefix_space: bool) -> Any:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: index for index, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    tokenizer.decoder = decoders.ByteLevel()
    return with_media(tokenizer)


def word_tokenizer() -> Any:
    """Return a tokenizer like Llama's, which writes a space as a character, and puts one before a text."""
    names = [*"▁\n<>[]_abeghimsIMGBREAK/", "▁a", "<unk>"]
    vocabulary = {name: index for index, name in enumerate(dict.fromkeys(names))}
    tokenizer = Tokenizer(models.BPE(vocabulary, [("▁", "a")], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Metaspace()
    return with_media(tokenizer)


def with_media(tokenizer: Tokenizer) -> Any:
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in ("<s>", "</s>", *MEDIA)])
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")
    made.chat_template = TEMPLATE
    return made


TOKENIZERS = {
    "bytes": byte_tokenizer(False), "bytes after a space": byte_tokenizer(True), "words": word_tokenizer(),
}  # fmt: skip
TEXTS = [
    "a <image>", "<image>", "<image>s<image>", "a[IMG_BREAK]a", "<im<image>age>", " <image> a", "a", "<image>\n\na",
]  # fmt: skip


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("text", TEXTS)
def test_tokens_are_those_of_transformers_sanitized_chat(name: str, text: str) -> None:
    tokenizer = TOKENIZERS[name]
    messages = [{"role": "user", "content": text, "x": {"<image>": [text]}}]
    expected = tokenizer.apply_chat_template(
        [{**messages[0], "x": {"image": [text]}}], sanitize_control_tokens=True, return_dict=False
    )
    marks = MediaMarks(MEDIA)
    rendered = tokenizer.apply_chat_template(
        marks.value([{**messages[0], "x": {"image": [text]}}]), tokenize=False
    )

    found = MarkedTextEncoder(tokenizer.backend_tokenizer).encode(marks.pieces(rendered), False)

    assert found == expected
    image = tokenizer.convert_tokens_to_ids("<image>")
    assert found.count(image) == 1
    assert marks.restored(rendered) == tokenizer.apply_chat_template(
        [{**messages[0], "x": {"image": [text]}}], tokenize=False
    )


def test_marks_are_in_names_and_values_of_any_depth() -> None:
    marks = MediaMarks(MEDIA)
    value = {"<image>": [1, None, {"a": "b<image>"}], "c": "d"}
    marked = marks.value(value)
    assert "<image>" not in str(marked)
    assert marks.restored(str(marked)) == str(value)


def test_special_tokens_are_put_around_the_whole_text() -> None:
    from tokenizers.processors import TemplateProcessing

    tokenizer = byte_tokenizer(False).backend_tokenizer
    ids = [tokenizer.token_to_id(name) for name in ("<s>", "</s>")]
    tokenizer.post_processor = TemplateProcessing(
        "<s> $A </s>", special_tokens=[("<s>", ids[0]), ("</s>", ids[1])]
    )
    marks = MediaMarks(MEDIA)
    pieces = marks.pieces(marks.text("a<image>b"))

    found = MarkedTextEncoder(tokenizer).encode(pieces, True)

    assert (found[0], found[-1]) == tuple(ids)
    assert tokenizer.decode(found, skip_special_tokens=True) == "a<image>b"
    assert found[1:-1] == MarkedTextEncoder(tokenizer).encode(pieces, False)


def test_token_that_is_a_word_of_the_vocabulary_is_encoded_by_characters() -> None:
    letters = {letter: index for index, letter in enumerate("<image>")}
    tokenizer = Tokenizer(models.WordLevel({**letters, "<image>": 7, "\n": 8, "a <": 9}, unk_token="a"))
    tokenizer.add_special_tokens(["<image>"])
    assert MarkedTextEncoder(tokenizer).encode(["a", "<image>", ""], False) == [
        letters["a"],
        *(letters[letter] for letter in "<image>"),
    ]
