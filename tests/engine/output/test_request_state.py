"""What the front end keeps of a request in flight."""

from collections.abc import Iterator

import pytest

from engine_server import LLMEngine, RequestOutputKind, SamplingParams
from engine_server.engine.output.request_state import GenerationState
from engine_server.requests.logprobs import Logprob

OPTIONS = {"temperature": 0, "max_tokens": 12, "ignore_eos": True, "logprobs": 2}


def outputs_of(
    engine: LLMEngine, request_id: str, params: SamplingParams
) -> Iterator[list[dict[int, Logprob]]]:
    """Yield the log-probabilities of each output of a request."""
    engine.add_request(request_id, "some text", params)
    while engine.has_unfinished_requests():
        for output in engine.step():
            yield list(output.outputs[0].logprobs)


@pytest.mark.parametrize("flat", [False, True])
def test_log_probabilities_that_a_stream_has_sent_are_not_kept(
    writer: LLMEngine, flat: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[int] = []
    send = GenerationState.output

    def record(state: GenerationState) -> object:
        output = send(state)
        kept.append(len(state.completions[0].logprobs))
        return output

    (whole,) = outputs_of(
        writer, "whole", SamplingParams(**OPTIONS, output_kind=RequestOutputKind.FINAL_ONLY)
    )
    monkeypatch.setattr(GenerationState, "output", record)
    streamed = SamplingParams(**OPTIONS, output_kind=RequestOutputKind.DELTA, flat_logprobs=flat)
    deltas = list(outputs_of(writer, "streamed", streamed))
    assert kept and set(kept) == {0}
    assert [entry for delta in deltas for entry in delta] == whole
