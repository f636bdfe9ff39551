"""Log-probabilities: their number, tokens and form."""

from pathlib import Path

import pytest

from engine_server import LLM, FlatLogprobs, InvalidRequestError, RequestOutput, SamplingParams

PROMPT = {"prompt_token_ids": [5, 9, 40, 17]}
VOCABULARY = 300


@pytest.fixture(scope="module")
def llm(tiny_writer: Path) -> LLM:
    return LLM(str(tiny_writer), dtype="float32", num_gpu_blocks_override=64, max_logprobs=-1)


@pytest.fixture(scope="module")
def limited(tiny_writer: Path) -> LLM:
    return LLM(str(tiny_writer), dtype="float32", num_gpu_blocks_override=64, max_logprobs=3)


def run(llm: LLM, **options: object) -> RequestOutput:
    params = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True, **options)
    (output,) = llm.generate(PROMPT, params, use_tqdm=False)
    return output


def test_logprobs_of_minus_one_are_the_whole_vocabulary(llm: LLM) -> None:
    output = run(llm, logprobs=-1, prompt_logprobs=-1)
    for position in (*output.outputs[0].logprobs, *output.prompt_logprobs[1:]):
        assert set(position) == set(range(VOCABULARY))
        assert sorted(entry.rank for entry in position.values()) == list(range(1, VOCABULARY + 1))


def test_logprobs_beyond_max_logprobs_are_refused(limited: LLM) -> None:
    assert len(run(limited, logprobs=3).outputs[0].logprobs[0]) in (3, 4)
    for options in ({"logprobs": 4}, {"prompt_logprobs": 4}, {"logprobs": -1}):
        with pytest.raises(InvalidRequestError, match="max_logprobs 3"):
            run(limited, **options)
    assert not limited.llm_engine.has_unfinished_requests()


def test_prompt_logprobs_set_to_true_report_one_token(llm: LLM) -> None:
    assert run(llm, prompt_logprobs=True).prompt_logprobs == run(llm, prompt_logprobs=1).prompt_logprobs


def test_flat_logprobs_hold_the_same_as_dicts(llm: LLM) -> None:
    flat, dicts = (run(llm, logprobs=2, prompt_logprobs=2, flat_logprobs=form) for form in (True, False))
    assert isinstance(flat.outputs[0].logprobs, FlatLogprobs) and isinstance(
        flat.prompt_logprobs, FlatLogprobs
    )
    assert list(flat.outputs[0].logprobs) == dicts.outputs[0].logprobs
    assert list(flat.prompt_logprobs)[1:] == dicts.prompt_logprobs[1:]
    assert flat.prompt_logprobs[0] == {} and dicts.prompt_logprobs[0] is None


def test_logprobs_have_no_decoded_token_without_detokenization(llm: LLM) -> None:
    output = run(llm, logprobs=1, prompt_logprobs=1, detokenize=False)
    entries = [*output.outputs[0].logprobs[0].values(), *output.prompt_logprobs[1].values()]
    assert {entry.decoded_token for entry in entries} == {None}


def test_token_that_is_part_of_a_character_has_an_empty_decoded_token(llm: LLM) -> None:
    """The vocabulary has every byte as a token, half of which are parts of characters."""

    def decode(token: int) -> str:
        return llm.get_tokenizer().decode([token], skip_special_tokens=False)

    position = run(llm, logprobs=-1).outputs[0].logprobs[0]
    texts = {token: entry.decoded_token for token, entry in position.items()}
    parts = [token for token in texts if "\ufffd" in decode(token)]
    assert len(parts) > 100
    assert all(text == ("" if token in parts else decode(token)) for token, text in texts.items())
