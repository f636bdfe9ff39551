"""The probability of an output's end within its thoughts goes to the end of the thoughts."""

from pathlib import Path

import pytest
import torch
from small_tokenizers import EOS, byte_level, vocabulary_of

from engine_server import EngineArgs, LLMEngine, SamplingParams, StructuredOutputsParams
from engine_server.core.sampling.grammars import Grammars
from engine_server.core.sampling.token_masks import Redirects
from engine_server.core.scheduling.batch import Scheduled
from engine_server.core.scheduling.request import GenerationRequest, Request
from engine_server.modeling.platform.cpu import CpuPlatform
from engine_server.requests.messages import AddRequest
from engine_server.requests.reasoning import Mark, Reasoning
from engine_server.requests.token_bytes import pack
from engine_server.structured.description import grammar_text

CLOSE = 20
REASONING = Reasoning(end=[Mark("x", [CLOSE], exact=True)], inside=True)
ENDS = [1, 3]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_probability_of_the_ends_is_added_to_that_of_the_target(dtype: torch.dtype) -> None:
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(0)).to(dtype)
    before = logits.float().softmax(-1)
    Redirects([0, 2], [5, 7], ENDS).apply(logits, CpuPlatform())
    after = logits.float().softmax(-1)
    for row, target in [(0, 5), (2, 7)]:
        before[row, target] += before[row, ENDS].sum()
        before[row, ENDS] = 0
    torch.testing.assert_close(after, before, atol=1e-2 if dtype == torch.bfloat16 else 1e-6, rtol=0)
    assert (after[0, ENDS] == 0).all()


def test_row_does_not_depend_on_the_other_rows() -> None:
    logits = torch.randn(4, 50, generator=torch.Generator().manual_seed(0))
    alone = logits[2:3].clone()
    Redirects([0, 2, 3], [5, 7, 9], ENDS).apply(logits, CpuPlatform())
    Redirects([0], [7], ENDS).apply(alone, CpuPlatform())
    assert logits[2].tolist() == alone[0].tolist()


def test_excluded_ends_and_target_stay_excluded() -> None:
    logits = torch.zeros(1, 50)
    logits[0, [*ENDS, 5]] = -torch.inf
    Redirects([0], [5], ENDS).apply(logits, CpuPlatform())
    assert logits[0].isneginf().nonzero().flatten().tolist() == [*ENDS, 5]


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    vocabulary = vocabulary_of(byte_level())
    grammars = Grammars([EOS], len(vocabulary.tokens), CpuPlatform())
    grammars.load(vocabulary)
    return grammars


def opened(grammars: Grammars, output: list[int], **options: object) -> list[Scheduled]:
    """Return a batch of a request that continues these tokens, whose grammar is compiled."""
    form = StructuredOutputsParams(grammar=grammar_text(StructuredOutputsParams(regex="(ab)+"), {}))
    params = SamplingParams(seed=1, structured_outputs=form, **options)  # type: ignore[arg-type]
    message = AddRequest(["r"], pack([9, *output]), params, 40, 0.0, num_resumed=len(output))
    (request,) = Request.from_message(message)
    assert isinstance(request, GenerationRequest)
    grammars.open(request)
    assert request.limits is not None and request.limits.matcher is not None
    request.limits.matcher.may_begin_with(0)  # waits for the compiler
    return [Scheduled(request, 0, 0, len(request.token_ids), True)]


def test_row_within_its_thoughts_needs_no_mask(grammars: Grammars) -> None:
    masks = grammars.fill(opened(grammars, [30, 31], reasoning=REASONING))
    assert masks is not None
    assert masks.rows == [] and len(masks.bits) == 0
    assert masks.redirects == Redirects([0], [CLOSE], [EOS])


def test_row_past_its_thoughts_may_end_where_its_grammar_does(grammars: Grammars) -> None:
    masks = grammars.fill(opened(grammars, [30, CLOSE], reasoning=REASONING))
    assert masks is not None
    assert masks.rows == [0]
    assert masks.redirects.rows == []


def test_reported_probabilities_are_those_that_tokens_are_drawn_by(tiny_writer: Path, finish) -> None:
    engine = LLMEngine.from_engine_args(
        EngineArgs(
            model=str(tiny_writer), dtype="float32", max_model_len=64, num_gpu_blocks_override=40,
            disable_log_stats=True, logprobs_mode="processed_logprobs",
        )
    )  # fmt: skip
    params = SamplingParams(
        structured_outputs=StructuredOutputsParams(regex="(ab){2}"), reasoning=REASONING, logprobs=5, seed=1,
        logit_bias={1: 50.0},
    )  # fmt: skip
    engine.add_request("r", {"prompt_token_ids": [60, 61]}, params)
    [completion] = finish(engine)["r"].outputs
    assert completion.token_ids[0] == CLOSE
    likeliest = completion.logprobs[0]
    assert likeliest[CLOSE].logprob == pytest.approx(0, abs=1e-3)
    assert 1 not in likeliest
