"""The texts and bytes of tokens in log-probabilities, of byte-level and SentencePiece-like tokenizers."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest
from small_tokenizers import SPECIAL, byte_level, vocabulary_of
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from engine_server.engine.output.output_processor import OutputProcessor
from engine_server.engine.output.token_texts import TokenTexts
from engine_server.requests.messages import AddRequest, RequestStep, TokenLogprobsArray
from engine_server.requests.outputs import RequestOutput
from engine_server.requests.sampling_params import SamplingParams
from engine_server.requests.submission import Submission
from engine_server.requests.token_bytes import pack
from engine_server.server.api.chat.logprobs import to_logprobs
from engine_server.server.api.completion_renderer import CompletionRenderer
from engine_server.server.api.openai_answer import AnswerOptions
from engine_server.server.generation.events import ChoiceDelta, Finish, Prompt, Text, TokenCounts
from engine_server.server.generation.plan import AnswerIdentity
from engine_server.telemetry.stats import IterationStats

WORDS = ["is", "it", "true", "a", "é"]
COUNTS = TokenCounts(1, 1)


def metaspace() -> Tokenizer:
    """Return a tokenizer like Llama 2's, which puts <s> before a text and drops the space that texts begin with."""
    names = [
        *SPECIAL,
        *(f"<0x{byte:02X}>" for byte in range(256)),
        "▁",
        *WORDS,
        *(f"▁{word}" for word in WORDS),
    ]
    names += ["i", "s", "t", "tr", "ru", "tru", "r", "u", "e"]
    merges = [("i", "s"), ("i", "t"), ("t", "r"), ("tr", "u"), ("tru", "e")]
    merges += [("▁", word) for word in WORDS]
    vocabulary = {name: index for index, name in enumerate(names)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token="<pad>", byte_fallback=True))
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    return tokenizer


TOKENIZERS = {"metaspace": metaspace, "byte level": byte_level}


@pytest.fixture(params=TOKENIZERS)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return TOKENIZERS[request.param]()


class Answer:
    """The answer that a model gives by writing `token_ids` after a prompt; all of `others` are less likely."""

    def __init__(
        self, tokenizer: Tokenizer, prompt: str | list[int], token_ids: list[int], others: Sequence[int] = ()
    ) -> None:
        self.texts = TokenTexts(tokenizer, vocabulary_of(tokenizer).tokens)
        prompt_ids = tokenizer.encode(prompt).ids if isinstance(prompt, str) else prompt
        params = SamplingParams(logprobs=len(others), prompt_logprobs=len(others), max_tokens=100, seed=1)
        processor = OutputProcessor(tokenizer, [], self.texts)
        prepared = processor.prepare(
            Submission("r", {"prompt_token_ids": prompt_ids}, params),
            AddRequest([], pack(prompt_ids), params, 100, 0.0),
            prompt_ids,
            None,
        )
        processor.add(prepared.state)
        (core_id,) = prepared.message.request_ids
        prepared.state.add_prompt_logprobs([ranked(token, others) for token in prompt_ids[1:]])  # type: ignore[attr-defined]
        for number, token in enumerate(token_ids, 1):
            last = "length" if number == len(token_ids) else None
            step = RequestStep(core_id, [token], [ranked(token, others)], last)
            outputs, _ = processor.process([step], IterationStats())
        (output,) = outputs
        assert isinstance(output, RequestOutput)
        (choice,) = output.outputs
        self.text = choice.text
        self.logprobs = list(choice.logprobs or ())
        self.shown_prompt = (
            prompt if isinstance(prompt, str) else tokenizer.decode(prompt, skip_special_tokens=False)
        )
        self.prompt = Prompt(self.shown_prompt, prompt_ids, output.prompt_logprobs)
        self.token_ids = choice.token_ids

    def completion(self, *, echo: bool = False, streamed: bool = False) -> Any:
        """Return the choice of a completion, whole or in one chunk for each token."""
        identity = AnswerIdentity("cmpl-1", 0, "m", "hash")
        renderer = CompletionRenderer(
            identity, AnswerOptions(), echo=echo, logprobs=True, skips_special=True, texts=self.texts
        )
        end = Finish("length", None)
        if not streamed:
            whole = ChoiceDelta(0, [Text(self.text)], self.token_ids, self.logprobs, end, COUNTS, self.prompt)
            return json.loads(asyncio.run(renderer.body([whole], COUNTS)))["choices"][0]
        columns: dict[str, list[Any]] = {}
        for index, (token, entries) in enumerate(zip(self.token_ids, self.logprobs, strict=True)):
            prompt = self.prompt if index == 0 else None
            delta = ChoiceDelta(0, [], [token], [entries], None, COUNTS, prompt)
            if prompt is not None:
                asyncio.run(renderer.prepare(delta))
            (choice,) = json.loads(renderer.event(delta).removeprefix(b"data: "))["choices"]
            for name, column in choice["logprobs"].items():
                columns.setdefault(name, []).extend(column)
        return {"logprobs": columns, "text": (self.shown_prompt if echo else "") + self.text}


def ranked(token: int, others: Sequence[int]) -> TokenLogprobsArray:
    ids = list(dict.fromkeys([token, *others]))
    return TokenLogprobsArray(ids, [-0.5 - rank for rank in range(len(ids))], list(range(1, len(ids) + 1)))


def check_offsets(choice: Any, left_out: Sequence[str] = SPECIAL) -> None:
    """Check that tokens join to the choice's text, and that offsets point to them, also to parts of characters."""
    text, logprobs = choice["text"], choice["logprobs"]
    joined = b""
    for token, offset in zip(logprobs["tokens"], logprobs["text_offset"], strict=True):
        if token in left_out:
            continue
        assert len(joined.decode(errors="ignore")) == offset
        if token.startswith("bytes:"):
            joined += bytes.fromhex(token.removeprefix("bytes:").replace("\\x", ""))
        else:
            assert text[offset:].startswith(token)
            joined += token.encode()
    assert joined.decode() == text


def ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """Return the tokens of a text that follows another one."""
    found: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return found


SPOKEN = [" true is it 😊 true", " é漢字 a", " is"]


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("echo", [False, True])
@pytest.mark.parametrize("text", SPOKEN)
@pytest.mark.parametrize("prompt", ["is it", "it is 😊", " é"])
def test_tokens_join_to_the_text_and_offsets_point_into_it(
    tokenizer: Tokenizer, prompt: str, text: str, echo: bool, streamed: bool
) -> None:
    written = ids(tokenizer, text[1:] if "Metaspace" in tokenizer.to_str() else text)

    choice = Answer(tokenizer, prompt, written).completion(echo=echo, streamed=streamed)

    assert choice["text"] == (prompt if echo else "") + text
    check_offsets(choice)


def test_text_after_a_prompt_without_text_begins_without_its_space() -> None:
    tokenizer = metaspace()
    answer = Answer(tokenizer, [0], ids(tokenizer, "true is"))

    choice = answer.completion()

    assert choice["logprobs"]["tokens"] == ["true", " is"]
    check_offsets(choice)
    assert [next(iter(entries.values())).decoded_token for entries in answer.logprobs] == ["true", " is"]


def test_special_token_that_the_text_leaves_out_moves_no_offset() -> None:
    tokenizer = metaspace()
    first, second = ids(tokenizer, "true is")

    choice = Answer(tokenizer, "it", [first, tokenizer.token_to_id("</s>"), second]).completion(echo=True)

    assert choice["logprobs"]["tokens"] == ["<s>", "it", " true", "</s>", " is"]
    assert choice["logprobs"]["text_offset"] == [0, 0, 2, 7, 7]


def test_special_token_in_the_prompts_text_counts() -> None:
    tokenizer = metaspace()
    choice = Answer(tokenizer, [0, *ids(tokenizer, "is it")], ids(tokenizer, "true")).completion(echo=True)
    assert choice["text"] == "<s> is it true"
    check_offsets(choice, left_out=())


def test_alternatives_have_one_entry_for_each_token(tokenizer: Tokenizer) -> None:
    vocabulary = range(tokenizer.get_vocab_size())
    written = ids(tokenizer, "true 😊")

    choice = Answer(tokenizer, "is it", written, vocabulary).completion(echo=True)

    top = [entries for entries in choice["logprobs"]["top_logprobs"] if entries is not None]
    assert {len(entries) for entries in top} == {len(vocabulary)}
    assert "bytes:\\xf0" in top[-1]


def test_likelier_of_two_tokens_with_one_text_has_it_as_its_name() -> None:
    tokenizer = metaspace()
    with_space, without, byte = (tokenizer.token_to_id(name) for name in ("▁true", "true", "<0x61>"))
    others = [without, byte, tokenizer.token_to_id("a")]

    (first,) = Answer(tokenizer, [0], [with_space], others).completion()["logprobs"]["top_logprobs"]
    (later,) = Answer(tokenizer, "is", [with_space], others).completion()["logprobs"]["top_logprobs"]

    assert list(first) == ["true", f"token_id:{without}", "a", f"token_id:{others[-1]}"]
    assert list(later) == [" true", "true", "a", f"token_id:{others[-1]}"]


@pytest.mark.parametrize("text", SPOKEN)
def test_bytes_of_chat_log_probabilities_join_to_the_text(tokenizer: Tokenizer, text: str) -> None:
    vocabulary = range(tokenizer.get_vocab_size())
    written = ids(tokenizer, text[1:] if "Metaspace" in tokenizer.to_str() else text)
    answer = Answer(tokenizer, "is it", written, vocabulary)

    found = to_logprobs(answer.logprobs, -1, answer.texts)

    assert found is not None
    assert b"".join(bytes(token.bytes or []) for token in found.content) == text.encode()
    assert {len(token.top_logprobs) for token in found.content} == {len(vocabulary)}
    assert all(one.bytes for token in found.content for one in token.top_logprobs)


def test_vocabulary_without_known_bytes_is_decoded_token_by_token() -> None:
    tokenizer = byte_level()
    texts = TokenTexts(tokenizer)
    (part, *_) = ids(tokenizer, "😊")
    word, *_ = ids(tokenizer, " river")
    assert (texts.text(part), texts.part(part)) == ("", b"")
    assert texts.text(word) == tokenizer.decode([word])
    assert TokenTexts().text(word) is None and TokenTexts().part(word) == b""
