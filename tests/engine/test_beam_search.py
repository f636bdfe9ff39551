"""Beam search, compared with that of transformers."""

from collections.abc import Iterator

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from engine_server import BeamSearchParams, EngineArgs, InvalidRequestError, LLMEngine
from engine_server.engine.beam_search import BeamSearch, BeamSearchSequence, beam_search
from engine_server.requests.logprobs import Logprob
from engine_server.requests.outputs import CompletionOutput

pytestmark = pytest.mark.transformers

PROMPTS = [[5, 9, 4], [10, 3, 7, 15, 8], [11]]
EOS = 1


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[LlamaForCausalLM, LLMEngine]:
    """Return a model with a vocabulary of 16 tokens, so that beams end often, and an engine with it."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("tiny-vocabulary")
    config = LlamaConfig(
        vocab_size=16, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=64, initializer_range=0.5, eos_token_id=EOS, bos_token_id=0,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    model.save_pretrained(folder)
    args = EngineArgs(
        model=str(folder), dtype="float32", skip_tokenizer_init=True, num_gpu_blocks_override=80,
        disable_log_stats=True,
    )  # fmt: skip
    return model, LLMEngine.from_engine_args(args)


@pytest.mark.parametrize(
    "options", [{}, {"length_penalty": -1.0}, {"length_penalty": 2.0}, {"ignore_eos": True}]
)
def test_beam_search_finds_the_sequences_that_transformers_finds(
    model: tuple[LlamaForCausalLM, LLMEngine], options: dict
) -> None:
    reference, engine = model
    params = BeamSearchParams(4, 8, include_stop_str_in_output=True, **options)
    found = beam_search(engine, [{"prompt_token_ids": prompt} for prompt in PROMPTS], params)
    for prompt, output in zip(PROMPTS, found, strict=True):
        expected = reference.generate(
            torch.tensor([prompt]), num_beams=4, num_return_sequences=4, max_new_tokens=8, do_sample=False,
            length_penalty=params.length_penalty, early_stopping=False, pad_token_id=EOS,
            eos_token_id=None if params.ignore_eos else EOS, output_scores=True, return_dict_in_generate=True,
        )  # fmt: skip
        lengths = [len(prompt) + len(one.logprobs) for one in output.sequences]
        assert [one.tokens for one in output.sequences] == [
            row[:length] for row, length in zip(expected.sequences.tolist(), lengths, strict=True)
        ]
        scores = [one.cum_logprob / len(one.logprobs) ** params.length_penalty for one in output.sequences]
        assert scores == pytest.approx(expected.sequences_scores.tolist(), abs=1e-4)
    reasons = {one.finish_reason for output in found for one in output.sequences}
    assert reasons == ({"length"} if params.ignore_eos else {"stop", "length"} if not options else reasons)


class CountedTokens(list[int]):
    """A beam's tokens, which count how often they are copied."""

    num_copies = 0

    def __iter__(self) -> Iterator[int]:
        CountedTokens.num_copies += 1
        return super().__iter__()


def test_tokens_are_copied_for_the_chosen_beams_alone(
    model: tuple[LlamaForCausalLM, LLMEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CountedTokens, "num_copies", 0)
    width = 4
    params = BeamSearchParams(width, 8, ignore_eos=True)
    search = BeamSearch({"prompt_token_ids": [5, 9]}, params, model[1].get_input_preprocessor())
    search.beams = [BeamSearchSequence(CountedTokens([5, 9, number]), []) for number in range(width)]
    entry = {token: Logprob(-float(token)) for token in range(2 * width)}
    search.advance([CompletionOutput(0, "", [0], logprobs=[entry]) for _ in range(width)])
    assert [beam.tokens for beam in search.beams] == [[5, 9, number, 0] for number in range(width)]
    assert CountedTokens.num_copies == width


def test_end_of_sequence_is_left_out_unless_included(model: tuple[LlamaForCausalLM, LLMEngine]) -> None:
    _, engine = model
    kept, left = (
        beam_search(
            engine, [{"prompt_token_ids": [11]}], BeamSearchParams(4, 8, include_stop_str_in_output=keep)
        )
        for keep in (True, False)
    )
    for one, other in zip(kept[0].sequences, left[0].sequences, strict=True):
        ended = one.finish_reason == "stop"
        assert one.tokens == other.tokens + [EOS] * ended and one.cum_logprob == other.cum_logprob


def test_invalid_beam_search_parameters_are_refused_by_name(
    model: tuple[LlamaForCausalLM, LLMEngine],
) -> None:
    for options, name in (({"beam_width": 11}, "beam_width"), ({"temperature": 1.0}, "temperature")):
        with pytest.raises(InvalidRequestError, match=name):
            BeamSearchParams(**{"beam_width": 2, "max_tokens": 4, **options})
    with pytest.raises(InvalidRequestError, match="empty"):
        beam_search(model[1], [{"prompt_token_ids": []}], BeamSearchParams(2, 4))
    assert not model[1].has_unfinished_requests()


def test_beam_search_that_raises_in_a_step_leaves_no_request(
    model: tuple[LlamaForCausalLM, LLMEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, engine = model
    step, steps = engine.step, []

    def failing_step() -> list:
        steps.append(1)
        return step() if len(steps) < 3 else 1 / 0

    monkeypatch.setattr(engine, "step", failing_step)
    with pytest.raises(ZeroDivisionError):
        beam_search(engine, [{"prompt_token_ids": prompt} for prompt in PROMPTS], BeamSearchParams(4, 8))
    monkeypatch.undo()
    assert not engine.has_unfinished_requests()
    assert engine.step() == []
