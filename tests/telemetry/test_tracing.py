"""Spans that an OTLP collector receives."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from collector import collecting

from engine_server import EngineArgs, InvalidRequestError, LLMEngine

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture
def collector() -> Iterator[tuple[str, list]]:
    """Yield the collector's address, and the spans that it received."""
    with collecting() as (address, spans):
        yield address, spans


def test_request_with_trace_headers_is_exported_as_a_span(
    tiny_llama: Path, collector: tuple[str, list], finish, tiny_params
) -> None:
    endpoint, spans = collector
    engine = LLMEngine.from_engine_args(
        EngineArgs(
            model=str(tiny_llama), served_model_name="small", skip_tokenizer_init=True, num_gpu_blocks_override=32,
            otlp_traces_endpoint=endpoint, disable_log_stats=True,
        )
    )  # fmt: skip
    assert engine.is_tracing_enabled()
    params = tiny_params(n=2, temperature=0.5, max_tokens=3, ignore_eos=True)
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
    engine.add_request("traced", {"prompt_token_ids": [5] * 7}, params, trace_headers=headers)
    engine.add_request("untraced", {"prompt_token_ids": [5] * 7}, params)
    finish(engine)
    engine.do_log_stats()  # flushes the exporter
    (span,) = spans
    attributes = {item.key: item.value for item in span.attributes}
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, PARENT)
    assert span.name == "text_completion small"
    assert span.start_time_unix_nano < span.end_time_unix_nano
    assert attributes["gen_ai.request.model"].string_value == "small"
    assert attributes["gen_ai.response.id"].string_value == "traced"
    assert attributes["gen_ai.request.temperature"].double_value == 0.5
    assert attributes["gen_ai.request.choice.count"].int_value == 2
    assert attributes["gen_ai.usage.input_tokens"].int_value == 7
    assert attributes["gen_ai.usage.output_tokens"].int_value == 6
    reasons = attributes["gen_ai.response.finish_reasons"].array_value.values
    assert [reason.string_value for reason in reasons] == ["length", "length"]
    assert not any("stop_sequences" in name for name in attributes)  # a client's texts are never exported


def test_trace_headers_are_refused_without_an_endpoint(
    tiny_llama: Path, tiny_params, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = LLMEngine.from_engine_args(
        EngineArgs(model=str(tiny_llama), skip_tokenizer_init=True, num_gpu_blocks_override=32)
    )
    assert not engine.is_tracing_enabled()
    with pytest.raises(InvalidRequestError, match="trace_headers is not supported"):
        engine.add_request("a", {"prompt_token_ids": [5]}, tiny_params(), trace_headers={"traceparent": "x"})
    monkeypatch.delitem(sys.modules, "engine_server.telemetry.tracing", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(ValueError, match="needs the extra `tracing`"):
        EngineArgs(model=str(tiny_llama), otlp_traces_endpoint="http://collector").create_engine_config()
