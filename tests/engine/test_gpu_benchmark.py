"""The GPU benchmark with a tiny model and without a GPU: each part that can run reports its figures."""

import gzip
import json
import math
from pathlib import Path

import pytest

from benchmarks.gpu import limits, load
from benchmarks.gpu.limits import Limits
from benchmarks.gpu.parts import GOALS, PARTS
from benchmarks.gpu.report import Goal, Row, compared
from benchmarks.gpu.shapes import SHAPES
from benchmarks.gpu.switches import SWITCHES, Switch
from engine_server import EngineArgs

TINY = {
    **SHAPES["Qwen3-0.6B"], "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "head_dim": 16,
    "num_key_value_heads": 2, "num_hidden_layers": 2, "vocab_size": 128, "dtype": "float32",
}  # fmt: skip
SIZES = load.Sizes(
    decode=(1, 3), profiled=(3,), context=128, settle=2, steps=4, repeats=2, traced=4, prefill=64, short=8, shorts=2,
    requests=4, given=16, made=4, made_beside=2,
)  # fmt: skip


def test_gpu_benchmark_measures_the_whole_engine() -> None:
    rows = list(load.measure(Limits(1e9, 1e9), "tiny", SIZES, TINY))
    assert [row.name for row in rows] == [
        "start", "decode 1", "decode 3", "first of 8", "prefill", "load 16/2", "load 16/4", "busy 3", "kernels 3",
    ]  # fmt: skip
    measured = [row for row in rows if row.name not in ("busy 3", "kernels 3")]  # which only a GPU has
    assert all(value > 0 for row in measured for value in row.measures.values())


def test_report_has_goals_and_the_peers_figures() -> None:
    rows = [Row("decode 1", {"tok/s": 90.0}), Row("load", {"tok/s": 600.0})]
    lines = [
        Goal("8B", name, "tok/s", least).verdict(rows) for name, least in (("decode 1", 80), ("load", 700))
    ]
    assert lines == [
        "reached       8B, decode 1: 90 tok/s, goal 80 tok/s", "missed        8B, load: 600 tok/s, goal 700 tok/s"
    ]  # fmt: skip
    assert Goal("8B", "prefill", "%", 60).verdict(rows) == "not measured  8B, prefill: goal 60 %"
    beside = [Row("load", {"tok/s": 100.0}), Row("load", {"tok/s": 200.0})]
    assert list(compared({"8B": rows, "8B beside": beside})) == [
        "8B, load: 3 times transformers' continuous batching"
    ]


@pytest.mark.parametrize(
    "switch",
    [
        Switch(sampling={"temperature": 1.0, "top_p": 0.9}),
        pytest.param(Switch({"async_scheduling": True}), marks=pytest.mark.more),
    ],
)
def test_decode_is_measured_with_a_switch(switch: Switch) -> None:
    rows = list(load.measure_switch(Limits(), "tiny", switch, SIZES, TINY))
    *decodes, first = rows
    assert [row.name for row in rows] == ["decode 1", "decode 3", "first of 8"]
    assert all(row.measures["tok/s"] > 0 and math.isnan(row.measures["% of bandwidth"]) for row in decodes)
    assert first.measures["ms"] > 0


def test_device_time_is_read_from_a_trace(tmp_path: Path) -> None:
    spans = [
        {"cat": "kernel", "name": "product", "ts": 100.0, "dur": 30.0},
        {
            "cat": "kernel",
            "name": "norm",
            "ts": 120.0,
            "dur": 20.0,
        },  # overlaps the product, on another stream
        {"cat": "gpu_memcpy", "name": "copy", "ts": 125.0, "dur": 5.0},
        {"cat": "kernel", "name": "product", "ts": 200.0, "dur": 10.0},
        {"cat": "cpu_op", "name": "aten::mm", "ts": 0.0, "dur": 500.0},
        {"ph": "M", "name": "process_name"},
    ]
    file = tmp_path / "trace.json.gz"
    file.write_bytes(gzip.compress(json.dumps({"traceEvents": spans[::-1]}).encode()))
    trace = load.Trace.read(file)
    assert trace.busy == 50e-6
    assert trace.kernels == {"product": 40.0, "norm": 20.0, "copy": 5.0}


def test_parts_match_the_engine_and_fit_into_ten_minutes() -> None:
    assert sum(part.seconds for part in PARTS) < 10 * 60
    assert all(hasattr(EngineArgs, flag) for switch in SWITCHES.values() for flag in switch.flags)
    assert {goal.part for goal in GOALS} <= {part.name for part in PARTS}


def test_time_of_a_call_is_that_of_a_graph_of_calls_less_an_empty_graph(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Works take turns."""
    monkeypatch.setattr(limits, "graph_seconds", lambda works: 0.5 + sum(work() for work in works))
    assert limits.seconds([lambda: 2.0, lambda: 4.0]) == 3.0
    assert limits.rotated(1 << 40) == 1
    assert limits.rotated(8) == limits.CALLS
