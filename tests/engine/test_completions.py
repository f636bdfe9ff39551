"""Several completions of one prompt, prompt logprobs, resumed requests, and logits processors."""

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import LlamaForCausalLM

from engine_server import EngineArgs, InvalidRequestError, LLMEngine, RequestOutputKind, SamplingParams

PROMPT = [5, 9, 40, 3, 17]


def keep_even(token_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
    logits[1::2] = -torch.inf
    return logits


def fail_at_seven(token_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
    if len(token_ids) == 7:
        raise RuntimeError("seven")
    return logits


EVEN, SEVEN = f"{__name__}:keep_even", f"{__name__}:fail_at_seven"


@pytest.fixture(
    scope="module",
    params=[pytest.param(False, id="plain", marks=pytest.mark.thorough), pytest.param(True, id="overlapped")],
)
def tiny(tiny_llama: Path, request: pytest.FixtureRequest) -> LLMEngine:
    return LLMEngine.from_engine_args(
        EngineArgs(
            model=str(tiny_llama), dtype="float32", skip_tokenizer_init=True, num_gpu_blocks_override=80,
            max_num_batched_tokens=64, max_num_seqs=16, disable_log_stats=True, logits_processors=[EVEN, SEVEN],
            async_scheduling=request.param,
        )
    )  # fmt: skip


def run(engine: LLMEngine, params: SamplingParams, prompt: list[int] = PROMPT, **more) -> list:
    """Run one request, and return all its outputs."""
    engine.add_request("r", {"prompt_token_ids": prompt, **more}, params)
    outputs = []
    while engine.has_unfinished_requests():
        outputs += engine.step()
    return outputs


def test_completions_of_one_prompt_differ_and_repeat_with_the_seed(tiny: LLMEngine, tiny_params) -> None:
    params = tiny_params(n=3, seed=5, max_tokens=12, ignore_eos=True)
    first, again = run(tiny, params)[-1], run(tiny, params)[-1]
    tokens = [one.token_ids for one in first.outputs]
    assert tokens == [one.token_ids for one in again.outputs]
    assert len({tuple(one) for one in tokens}) == 3
    assert [one.index for one in first.outputs] == [0, 1, 2]
    alone = run(tiny, tiny_params(seed=5, max_tokens=12, ignore_eos=True))[-1]
    assert alone.outputs[0].token_ids == tokens[0]


def test_output_kinds_report_the_same_completions(tiny: LLMEngine, tiny_params) -> None:
    def outputs(kind: RequestOutputKind) -> list:
        return run(tiny, tiny_params(n=3, seed=1, max_tokens=30, logprobs=1, output_kind=kind))

    (final,) = outputs(RequestOutputKind.FINAL_ONLY)
    cumulative = outputs(RequestOutputKind.CUMULATIVE)
    assert len({len(one.token_ids) for one in final.outputs}) > 1, "they should end at different steps"
    assert cumulative[-1] == final and not any(output.finished for output in cumulative[:-1])
    assert all(len(output.outputs) == 3 for output in cumulative)
    pieces: dict[int, list] = {0: [], 1: [], 2: []}
    for output in outputs(RequestOutputKind.DELTA):
        for one in output.outputs:
            assert one.token_ids, "unchanged completions are not reported"
            pieces[one.index].append(one)
    for whole in final.outputs:
        assert [token for one in pieces[whole.index] for token in one.token_ids] == whole.token_ids
        assert [entry for one in pieces[whole.index] for entry in one.logprobs] == whole.logprobs
        assert [one.finish_reason for one in pieces[whole.index]][-1] == whole.finish_reason


def test_request_for_several_completions_counts_as_one_request(tiny: LLMEngine, tiny_params) -> None:
    params = tiny_params(n=3, max_tokens=50, ignore_eos=True)
    tiny.add_request("r", {"prompt_token_ids": PROMPT}, params)
    tiny.step()
    assert tiny.get_num_unfinished_requests() == 1 and len(tiny.debug_state().requests) == 3
    with pytest.raises(InvalidRequestError, match="'r' is in flight"):
        tiny.add_request("r", {"prompt_token_ids": PROMPT}, tiny_params())
    tiny.add_request("1_r", {"prompt_token_ids": PROMPT}, tiny_params())  # no completion of "r" has this id
    assert tiny.get_num_unfinished_requests() == 2
    tiny.abort_request(["r", "1_r"])
    assert not tiny.has_unfinished_requests() and not tiny.debug_state().requests


def test_best_of_returns_the_likeliest_completions_at_the_end(tiny: LLMEngine, tiny_params) -> None:
    everyone = run(tiny, tiny_params(n=5, seed=2, max_tokens=6, logprobs=0, ignore_eos=True))[-1].outputs
    (best,) = run(tiny, tiny_params(n=2, best_of=5, seed=2, max_tokens=6, ignore_eos=True))
    likeliest = sorted(everyone, key=lambda one: -one.cumulative_logprob)[:2]
    assert [one.token_ids for one in best.outputs] == [one.token_ids for one in likeliest]
    assert [(one.index, one.logprobs, one.cumulative_logprob) for one in best.outputs] == [
        (0, None, None),
        (1, None, None),
    ]


@pytest.mark.transformers
@pytest.mark.parametrize("length", [1, 2, 150])
def test_prompt_logprobs_equal_those_of_transformers(
    tiny: LLMEngine, tiny_llama: Path, tiny_params, length: int
) -> None:
    """150 tokens are three chunks of 64, in a batch with a request that samples."""
    prompt = torch.randint(2, 128, (length,), generator=torch.Generator().manual_seed(3)).tolist()
    tiny.add_request("beside", {"prompt_token_ids": PROMPT}, tiny_params(max_tokens=9, ignore_eos=True))
    params = tiny_params(
        prompt_logprobs=2, max_tokens=3, ignore_eos=True, output_kind=RequestOutputKind.DELTA
    )
    outputs = [output for output in run(tiny, params, prompt) if output.request_id == "r"]
    reported = outputs[0].prompt_logprobs
    assert [output.prompt_logprobs for output in outputs[1:]] == [None, None]
    with torch.inference_mode():
        expected = (
            LlamaForCausalLM.from_pretrained(tiny_llama)(torch.tensor([prompt])).logits[0].log_softmax(-1)
        )
    assert len(reported) == length and reported[0] is None
    for token, entry, row in zip(prompt[1:], reported[1:], expected, strict=False):
        values, ids = row.topk(2)
        assert next(iter(entry)) == token and set(entry) == {token, *ids.tolist()}
        assert entry[token].rank == int((row > row[token]).sum()) + 1
        assert entry[token].logprob == pytest.approx(row[token].item(), abs=1e-4)
        assert [entry[one].logprob for one in ids.tolist()] == pytest.approx(values.tolist(), abs=1e-4)


def test_prompt_logprobs_in_chunks_are_complete_after_preemption(
    tiny: LLMEngine, tiny_params, monkeypatch
) -> None:
    monkeypatch.setattr("engine_server.core.sampling.prompt_logprobs.ROWS", 7)
    prompt = [number % 120 + 2 for number in range(100)]
    params = tiny_params(prompt_logprobs=0, max_tokens=2, ignore_eos=True)
    alone = run(tiny, params, prompt)[-1].prompt_logprobs
    tiny.add_request("r", {"prompt_token_ids": prompt}, params)
    tiny.step()
    assert tiny.reset_prefix_cache(reset_running_requests=True)  # preempts it within its prompt
    outputs = []
    while tiny.has_unfinished_requests():
        outputs += tiny.step()
    ranks = [
        [entry and next(iter(entry.values())).rank for entry in one]
        for one in (alone, outputs[-1].prompt_logprobs)
    ]
    assert ranks[0] == ranks[1] and len(ranks[0]) == 100


RESUMED = [
    {"seed": 7, "presence_penalty": 1.0, "frequency_penalty": 0.5, "repetition_penalty": 1.3},
    {"seed": 8, "min_tokens": 6, "logprobs": 1, "stop_token_ids": [40, 41, 42, 43, 44]},
    {"temperature": 0, "bad_words_token_ids": [[7], [3, 4]], "max_tokens": 9},
    {"seed": 9, "top_p": 0.8, "ignore_eos": True},
]


@pytest.mark.parametrize("options", RESUMED)
def test_resumed_request_ends_like_one_that_was_never_interrupted(
    tiny: LLMEngine, tiny_params, options: dict
) -> None:
    params = tiny_params(**{"max_tokens": 10, **options})
    whole = run(tiny, params)[-1].outputs[0]
    for count in range(len(whole.token_ids) + 1):
        rest = run(tiny, params, resume_token_ids=whole.token_ids[:count])[-1]
        assert rest.finished and rest.prompt_token_ids == PROMPT
        one = rest.outputs[0]
        assert (one.token_ids, one.finish_reason, one.stop_reason) == (
            whole.token_ids,
            whole.finish_reason,
            whole.stop_reason,
        )
        if whole.logprobs:
            assert [list(entry) for entry in one.logprobs] == [
                [] if number < count else list(entry) for number, entry in enumerate(whole.logprobs)
            ]


@given(
    seed=st.integers(0, 2**64 - 1),
    stop=st.lists(st.sampled_from(["e", "to", "a t", "\ufffd", "s", "o"]), max_size=2),
    keep=st.booleans(),
    cut=st.integers(0, 10),
)
def test_resumed_stream_continues_at_the_same_character(
    writer: LLMEngine, seed: int, stop: list, keep: bool, cut: int
) -> None:
    """Tokens contain parts of the stop strings and parts of characters."""
    params = SamplingParams(
        seed=seed, stop=stop, max_tokens=10, include_stop_str_in_output=keep,
        output_kind=RequestOutputKind.DELTA,
    )  # fmt: skip

    def deltas(**more) -> list:
        writer.add_request("r", {"prompt": "Once upon", **more}, params)
        outputs = []
        while writer.has_unfinished_requests():
            outputs += [output.outputs[0] for output in writer.step()]
        return outputs

    whole = deltas()
    tokens = [token for one in whole for token in one.token_ids]
    cut = min(cut, len(tokens))
    rest = deltas(resume_token_ids=tokens[:cut])
    assert [token for one in rest for token in one.token_ids] == tokens[cut:]
    assert "".join(one.text for one in rest) == "".join(one.text for one in whole[cut:])
    assert [text for one in rest for text in one.resumed_text] == [one.text for one in whole[:cut]]
    assert (rest[-1].finish_reason, rest[-1].stop_reason) == (whole[-1].finish_reason, whole[-1].stop_reason)


def test_failing_logits_processor_ends_only_its_request(tiny: LLMEngine, tiny_params, finish) -> None:
    tiny.add_request(
        "even", {"prompt_token_ids": PROMPT}, tiny_params(logits_processors=[EVEN], max_tokens=20)
    )
    tiny.add_request(
        "seven", {"prompt_token_ids": PROMPT}, tiny_params(logits_processors=[SEVEN], ignore_eos=True)
    )
    tiny.add_request("none", {"prompt_token_ids": PROMPT}, tiny_params(allowed_token_ids=[1], min_tokens=1))
    last = {name: output.outputs[0] for name, output in finish(tiny).items()}
    assert last["even"].token_ids and not any(token % 2 for token in last["even"].token_ids)
    assert (last["seven"].finish_reason, len(last["seven"].token_ids)) == ("error", 2)
    assert last["seven"].stop_reason == f"{SEVEN}: RuntimeError: seven"
    assert last["none"].finish_reason == "error" and "no token is left" in last["none"].stop_reason
    assert tiny.debug_state().scheduler.num_used_blocks == 0
    with pytest.raises(InvalidRequestError, match="was started with tests"):
        tiny.add_request("r", {"prompt_token_ids": PROMPT}, tiny_params(logits_processors=["os:system"]))


def test_truncate_prompt_tokens_keeps_the_end_of_the_prompt(tiny: LLMEngine, tiny_params) -> None:
    prompt = [number % 128 for number in range(300)]
    assert run(tiny, tiny_params(truncate_prompt_tokens=4), prompt)[-1].prompt_token_ids == prompt[-4:]
    longest = run(tiny, tiny_params(truncate_prompt_tokens=-1), prompt)[-1]
    assert longest.prompt_token_ids == prompt[-255:] and len(longest.outputs[0].token_ids) == 1


def test_bad_words_are_never_generated(writer: LLMEngine) -> None:
    def tokens(**options) -> list[int]:
        writer.add_request("r", "The sea is", SamplingParams(temperature=0, max_tokens=20, **options))
        while writer.has_unfinished_requests():
            outputs = writer.step()
        return outputs[-1].outputs[0].token_ids

    tokenizer, free = writer.get_tokenizer(), tokens()
    word, token = next(
        (text, one)
        for one in free
        if tokenizer.encode(text := tokenizer.decode([one])) == [one] and text.strip()
    )
    assert token not in tokens(bad_words=[word])
    pair = free[3:5]
    assert pair not in [list(two) for two in pairwise(tokens(bad_words_token_ids=[pair]))]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"stop_token_ids": [128]}, "stop_token_ids has token 128"),
        ({"allowed_token_ids": [5, 200]}, "allowed_token_ids has token 200"),
        ({"logit_bias": {300: 1}}, "logit_bias has token 300"),
        ({"bad_words": ["x"]}, "no tokenizer"),
    ],
)
def test_tokens_outside_the_vocabulary_are_refused(tiny: LLMEngine, tiny_params, options, words) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        tiny.add_request("r", {"prompt_token_ids": PROMPT}, tiny_params(**options))


def test_invalid_resumed_tokens_are_refused(tiny: LLMEngine, tiny_params) -> None:
    for tokens, options, words in (
        ([128], {}, "resume_token_ids has token 128"),
        ([5] * 252, {}, "resume_token_ids has 252 tokens; 251 fit"),
        ([5], {"n": 2}, "one completion"),
    ):
        with pytest.raises(InvalidRequestError, match=words):
            tiny.add_request(
                "r", {"prompt_token_ids": PROMPT, "resume_token_ids": tokens}, tiny_params(**options)
            )
