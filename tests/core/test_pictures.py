"""Models that take pictures: their answers, and what is shared and computed again of their pictures."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from picture_prompts import PictureModel, random_image
from PIL import Image
from tiers import tiered
from tiny_pictures import FAMILIES, Family, tiny_model

from engine_server import EngineArgs, LLMEngine, RequestOutput, SamplingParams
from engine_server.core.encoding.request_pictures import EncoderInputs
from engine_server.engine import front_end
from engine_server.engine.input.picture_start import StartedPictures
from engine_server.requests.errors import InvalidRequestError, QueueFullError
from engine_server.requests.messages import RawTensor
from engine_server.requests.prompts import TokensPrompt
from engine_server.requests.structured_outputs import StructuredOutputsParams

TOKENS = 6
SMALL, WIDE, TALL = random_image(1, 30, 30), random_image(2, 60, 28), random_image(3, 20, 56)
ONE: list[str | Image.Image] = ["Look: ", SMALL, " What is it?"]
THREE: list[str | Image.Image] = [SMALL, " and ", WIDE, TALL, " differ how?"]
# All families, of which the default tier has one.
TIERED = tiered(FAMILIES, "smolvlm", more=FAMILIES)

Finish = Callable[[LLMEngine], dict[str, RequestOutput]]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Family], PictureModel]:
    made: dict[Family, PictureModel] = {}

    def model(family: Family) -> PictureModel:
        if family not in made:
            made[family] = PictureModel(tiny_model(family, tmp_path_factory.mktemp(family)))
        return made[family]

    return model


def make(model: PictureModel, **options: Any) -> LLMEngine:
    settings: dict[str, Any] = {
        "dtype": "float32", "max_model_len": 512, "max_num_seqs": 4, "max_num_batched_tokens": 512,
        "num_gpu_blocks_override": 160, "block_size": 8, "disable_log_stats": True, **options,
    }  # fmt: skip
    started: Any = StartedPictures(model.pictures)  # type: ignore[arg-type]
    with patch("engine_server.engine.llm_engine.start_pictures", return_value=started):
        engine = LLMEngine.from_engine_args(EngineArgs(model=str(model.folder), **settings))
    assert engine.model_config.refuses_pictures == ""
    model.pictures.digests.clear()
    return engine


def greedy(**options: Any) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True, **options)


def answer(
    engine: LLMEngine, finish: Finish, prompt: TokensPrompt, params: SamplingParams | None = None
) -> RequestOutput:
    engine.add_request("x", prompt, params or greedy())
    return finish(engine)["x"]


def count_encodings(engine: LLMEngine) -> list[str]:
    """Return the digests of the pictures that are encoded from now on."""
    rows, digests = engine._core.scheduler.pictures, list[str]()
    encode = rows._encode

    def counted(digest: str, inputs: EncoderInputs, count: int) -> str | None:
        digests.append(digest)
        return encode(digest, inputs, count)

    rows._encode = counted
    return digests


@pytest.mark.transformers
@pytest.mark.parametrize(
    "family", tiered(FAMILIES, "smolvlm", "mistral3", "llava_next", "llava_onevision", more=FAMILIES)
)
def test_answers_equal_those_of_transformers(models: Any, finish: Finish, family: Family) -> None:
    model = models(family)
    engine = make(model)
    cases: list[Sequence[str | Image.Image]] = [
        ["No picture here."],
        ONE,
        THREE,
        [WIDE, " ", SMALL, TALL, " differ how?"],
    ]
    expected = [model.expected(parts, TOKENS) for parts in cases]
    assert len({tuple(tokens) for _, tokens in expected}) == len(cases)  # the pictures matter
    for number, parts in enumerate(cases):
        engine.add_request(str(number), model.prompt(parts), greedy())
    outputs = finish(engine)
    for number, (prompt, tokens) in enumerate(expected):
        assert outputs[str(number)].prompt_token_ids == prompt
        assert outputs[str(number)].outputs[0].token_ids == tokens


@pytest.mark.parametrize("overlapped", [False, True])
@pytest.mark.parametrize("family", TIERED)
def test_a_chunk_may_end_at_any_row_of_a_picture(
    models: Any, finish: Finish, family: Family, overlapped: bool
) -> None:
    model = models(family)
    engine = make(model, max_num_batched_tokens=7, enable_prefix_caching=False, async_scheduling=overlapped)
    for length in range(7):
        parts = ["x" * length, *ONE]
        assert (
            answer(engine, finish, model.prompt(parts)).outputs[0].token_ids
            == model.expected(parts, TOKENS)[1]
        )


@pytest.mark.parametrize("family", TIERED)
def test_a_request_may_be_preempted_after_any_step(models: Any, finish: Finish, family: Family) -> None:
    model = models(family)
    expected = model.expected(ONE, TOKENS)[1]
    engine = make(model, max_num_batched_tokens=9, enable_prefix_caching=False)
    steps = 1
    while True:
        engine.add_request("x", model.prompt(ONE), greedy())
        for _ in range(steps):
            engine.step()
        if not engine.has_unfinished_requests():
            break
        engine._core.scheduler.preempt_all()
        engine.check_integrity()
        assert finish(engine)["x"].outputs[0].token_ids == expected
        steps += 1
    assert steps > TOKENS


@pytest.mark.parametrize("family", TIERED)
def test_prefixes_are_found_before_inside_and_after_a_picture(
    models: Any, finish: Finish, family: Family
) -> None:
    model = models(family)
    engine = make(model, block_size=4)
    prompt = model.prompt(ONE)
    expected = model.expected(ONE, TOKENS)[1]
    first = prompt["pictures"][0].runs[0].start
    assert answer(engine, finish, prompt).outputs[0].token_ids == expected
    lengths = set()
    for kept in range(len(prompt["prompt_token_ids"]) // 4 + 1):
        engine.reset_prefix_cache()
        answer(engine, finish, model.prompt(ONE))
        keep_blocks(engine, kept)
        output = answer(engine, finish, model.prompt(ONE))
        assert output.outputs[0].token_ids == expected
        lengths.add(output.num_cached_tokens)
    last = prompt["pictures"][0].runs[-1]
    assert min(lengths) <= first and max(lengths) >= last.start + last.length
    assert any(first < length < last.start + last.length for length in lengths)


def keep_blocks(engine: LLMEngine, count: int) -> None:
    """Keep so many blocks of the only prompt in the prefix cache, and no rows of pictures."""
    scheduler = engine._core.scheduler
    scheduler.pictures.clear()
    (pool,) = scheduler.table.pools
    cached = list(pool._cached)  # the last block of the prompt comes first
    for block_id in cached[: len(cached) - count]:
        pool.discard(block_id, pool._keys[block_id])


def test_a_picture_is_encoded_once_for_the_turns_of_a_conversation(models: Any, finish: Finish) -> None:
    model = models("smolvlm")
    engine = make(model)
    encoded = count_encodings(engine)
    parts: list[str | Image.Image] = []
    for turn in range(4):
        parts += [f"Turn {turn}: ", random_image(10 + turn, 30, 30), " and? "]
        answer(engine, finish, model.prompt(parts))
    assert len(model.pictures.digests) == len(encoded) == 4


def test_requests_with_one_picture_encode_it_once(models: Any, finish: Finish) -> None:
    model = models("smolvlm")
    engine = make(model, enable_prefix_caching=False)
    encoded = count_encodings(engine)
    for number in range(4):
        engine.add_request(str(number), model.prompt([f"{number}: ", SMALL]), greedy())
    outputs = finish(engine)
    assert len(encoded) == 1
    for number in range(4):
        assert outputs[str(number)].outputs[0].token_ids == model.expected([f"{number}: ", SMALL], TOKENS)[1]


def test_other_pictures_places_and_salts_find_no_block_of_a_picture(models: Any, finish: Finish) -> None:
    model = models("smolvlm")
    engine = make(model, block_size=4)
    other = random_image(99, *SMALL.size)
    before = len(model.encode("Look: ")) // 4 * 4
    answer(engine, finish, model.prompt(ONE))
    for parts, more, most in (
        (["Look: ", other, " What is it?"], {}, before + 4),
        (["Look:  ", SMALL, " What is it?"], {}, before),
        (ONE, {"cache_salt": "other"}, 0),
    ):
        output = answer(engine, finish, model.prompt(parts, **more))
        assert output.num_cached_tokens is not None and output.num_cached_tokens <= most
        assert output.outputs[0].token_ids == model.expected(parts, TOKENS)[1]
    again = answer(engine, finish, model.prompt(ONE))
    assert again.num_cached_tokens == (len(again.prompt_token_ids or []) - 1) // 4 * 4


@pytest.mark.parametrize("family", TIERED)
def test_an_answer_continues_after_any_of_its_tokens(models: Any, finish: Finish, family: Family) -> None:
    model = models(family)
    engine = make(model)
    expected = model.expected(ONE, TOKENS)[1]
    for count in range(TOKENS):
        prompt = model.prompt(ONE, resume_token_ids=expected[:count])
        assert answer(engine, finish, prompt).outputs[0].token_ids == expected


def test_choices_seeds_and_log_probabilities(models: Any, finish: Finish) -> None:
    model = models("smolvlm")
    engine = make(model)
    prompt = model.prompt(ONE)
    params = SamplingParams(n=3, seed=5, max_tokens=TOKENS, logprobs=1, prompt_logprobs=1, ignore_eos=True)
    first, second = (answer(engine, finish, model.prompt(ONE), params) for _ in range(2))
    assert [one.token_ids for one in first.outputs] == [one.token_ids for one in second.outputs]
    assert len({tuple(one.token_ids) for one in first.outputs}) > 1
    assert first.prompt_logprobs is not None
    placeholders = {run.start + row for run in prompt["pictures"][0].runs for row in range(run.length)}
    nulls = {place for place, entry in enumerate(first.prompt_logprobs) if entry is None}
    assert nulls == placeholders | {0}


@pytest.mark.parametrize("family", TIERED)
def test_rows_are_made_again_after_sleep_and_reset(models: Any, finish: Finish, family: Family) -> None:
    model = models(family)
    engine = make(model)
    encoded = count_encodings(engine)
    expected = model.expected(ONE, TOKENS)[1]
    assert answer(engine, finish, model.prompt(ONE)).outputs[0].token_ids == expected
    for level in (1, 2):
        engine.sleep(level)
        engine.wake_up()
        assert answer(engine, finish, model.prompt(ONE)).outputs[0].token_ids == expected
    engine.reset_prefix_cache()
    assert answer(engine, finish, model.prompt(ONE)).outputs[0].token_ids == expected
    assert len(encoded) == 4


def test_a_sleep_in_the_middle_of_a_picture_loses_nothing(models: Any, finish: Finish) -> None:
    model = models("smolvlm")
    engine = make(model, max_num_batched_tokens=9)
    engine.add_request("x", model.prompt(ONE), greedy())
    for _ in range(3):
        engine.step()
    engine.sleep(1)
    engine.wake_up()
    assert finish(engine)["x"].outputs[0].token_ids == model.expected(ONE, TOKENS)[1]


@pytest.mark.parametrize("fault", ["not finite", "rows", "argument"])
def test_a_picture_that_the_model_cannot_take_ends_its_request_alone(
    models: Any, finish: Finish, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = models("smolvlm")
    engine = make(model)
    bad = model.prompt(ONE)
    digest = bad["pictures"][0].digest
    inputs = model.pictures.processed(bad["pictures"][0].picture).inputs
    pixels = inputs["pixel_values"].tensor()
    wrong = {
        "not finite": pixels * float("nan"),
        "rows": pixels[:, :0],
        "argument": pixels[..., :-1],
    }
    monkeypatch.setitem(model.pictures.faults, digest, {**inputs, "pixel_values": RawTensor.of(wrong[fault])})
    engine.add_request("bad", bad, greedy())
    engine.add_request("good", model.prompt(["Look: ", WIDE]), greedy())
    outputs = finish(engine)
    assert outputs["bad"].outputs[0].finish_reason == "refused"
    assert "picture" in str(outputs["bad"].outputs[0].stop_reason)
    assert outputs["good"].outputs[0].token_ids == model.expected(["Look: ", WIDE], TOKENS)[1]
    engine.check_integrity()


@pytest.mark.more
def test_two_ranks_give_the_answers_of_one(models: Any, finish: Finish) -> None:
    model = models("smolvlm")
    engine = make(model, tensor_parallel_size=2, device="cpu", max_num_batched_tokens=16)
    for parts in (ONE, THREE):
        assert (
            answer(engine, finish, model.prompt(parts)).outputs[0].token_ids
            == model.expected(parts, TOKENS)[1]
        )


def test_requests_without_places_for_their_rows_wait_for_those_of_others(models: Any, finish: Finish) -> None:
    model = models("llava")
    engine = make(model, max_model_len=64, num_gpu_blocks_override=64, enable_prefix_caching=False)
    cases = [
        ["a" * number, random_image(number, 28, 28), random_image(50 + number, 28, 28)] for number in range(6)
    ]
    for number, parts in enumerate(cases):
        engine.add_request(str(number), model.prompt(parts), greedy())
    outputs = finish(engine)
    for number, parts in enumerate(cases):
        assert outputs[str(number)].outputs[0].token_ids == model.expected(parts, TOKENS)[1]


def test_aborted_requests_leave_nothing(models: Any, tmp_path: Path) -> None:
    model = models("smolvlm")
    engine = make(model)
    for number in range(3):
        engine.add_request(str(number), model.prompt([SMALL, WIDE, TALL]), greedy())
    engine.step()
    engine.abort_request(["0", "1", "2"])
    engine.check_integrity()
    assert not any(rows.holders for rows in engine._core.scheduler.pictures._rows.values())


def test_drafts_of_ngrams_change_no_answer_about_a_picture(models: Any, finish: Finish) -> None:
    model = models("smolvlm")
    settings = {
        "method": "ngram",
        "num_speculative_tokens": 3,
        "prompt_lookup_max": 2,
        "prompt_lookup_min": 1,
    }
    engine = make(model, speculative_config=settings)
    parts = ["ab" * 8, SMALL, "ab" * 8]
    assert (
        answer(engine, finish, model.prompt(parts)).outputs[0].token_ids == model.expected(parts, TOKENS)[1]
    )


def test_grammars_and_penalties_apply_after_a_picture(models: Any, finish: Finish) -> None:
    model = models("smolvlm")
    engine = make(model)
    grammar = SamplingParams(
        temperature=0, max_tokens=TOKENS, structured_outputs=StructuredOutputsParams(regex="[ab]{4}")
    )
    assert re.fullmatch("[ab]{4}", answer(engine, finish, model.prompt(ONE), grammar).outputs[0].text)
    penalised = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True, frequency_penalty=2.0)
    tokens = answer(engine, finish, model.prompt(ONE), penalised).outputs[0].token_ids
    assert len(set(tokens)) == TOKENS


def test_prompts_that_take_no_pictures_are_refused_by_name(models: Any) -> None:
    model = models("smolvlm")
    engine = make(model)
    placeholder = {"prompt_token_ids": [5, model.image_token_id, 6]}
    with pytest.raises(InvalidRequestError, match="stands for a picture"):
        engine.add_request("x", placeholder, greedy())
    cut = SamplingParams(max_tokens=1, truncate_prompt_tokens=4)
    with pytest.raises(InvalidRequestError, match="can't cut a prompt with pictures"):
        engine.add_request("x", model.prompt(ONE), cut)


def test_pictures_of_requests_in_flight_have_bounded_memory(
    models: Any, finish: Finish, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = models("smolvlm")
    engine = make(model)
    monkeypatch.setattr(front_end, "MOST_PICTURE_BYTES", 250)

    def prompt(seed: int) -> TokensPrompt:
        found = model.prompt(["x", random_image(seed, 30, 30)])
        found["pictures"] = [
            replace(one, picture=replace(one.picture, data=bytes(100))) for one in found["pictures"]
        ]
        return found

    engine.add_request("1", prompt(1), greedy())
    engine.add_request("2", prompt(2), greedy())
    with pytest.raises(QueueFullError, match="pictures of all requests in flight"):
        engine.add_request("3", prompt(3), greedy())
    finish(engine)
    engine.add_request("3", prompt(3), greedy())
    assert finish(engine)["3"].finished
