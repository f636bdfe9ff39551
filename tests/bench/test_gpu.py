"""The GPU's benchmark on a tiny model and no GPU: each part that can run here gives its figures."""

import gzip
import json
import math
from pathlib import Path

from benchmarks.gpu import load
from benchmarks.gpu.limits import Limits
from benchmarks.gpu.parts import GOALS, PARTS
from benchmarks.gpu.report import Row, summary
from benchmarks.gpu.shapes import SHAPES

TINY = {
    **SHAPES["Qwen3-0.6B"], "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "head_dim": 16,
    "num_key_value_heads": 2, "num_hidden_layers": 2, "vocab_size": 128, "dtype": "float32",
}  # fmt: skip
SIZES = load.Sizes(
    decode=(1, 3), profiled=(3,), context=128, settle=2, steps=4, repeats=2, prefill=64, requests=4, given=16,
    made=4, made_beside=2,
)  # fmt: skip


def test_the_whole_engine_is_measured() -> None:
    goals = {"decode 3": {"tok/s": 0.0}, "prefill": {"% of matmul": math.inf}}
    rows = list(load.measure(Limits(1e9, 1e9), "tiny", goals, SIZES, TINY))
    assert [row.name for row in rows] == [
        "start", "decode 1", "decode 3", "prefill", "busy 3", "kernels 3", "load 16/2", "load 16/4",
    ]  # fmt: skip
    figures = {row.name: row for row in rows}
    assert all(
        value > 0 for name in ("decode 1", "decode 3", "prefill") for value in figures[name].measures.values()
    )
    assert figures["decode 3"].reached("tok/s")
    assert not figures["prefill"].reached("% of matmul")
    told = list(summary({"tiny": rows, "tiny beside": [Row("load 16/2", {"tok/s": 1.0})]}))
    assert [line.split()[0] for line in told] == ["reached:", "missed:", "tiny,"]


def test_switches_are_compared() -> None:
    rows = list(
        load.compare(Limits(), "tiny", {"plain": {}, "overlap": {"async_scheduling": True}}, SIZES, TINY)
    )
    assert [row.name for row in rows] == [
        f"decode {n}, {way}" for way in ("plain", "overlap") for n in (1, 3)
    ]
    assert all(row.measures["tok/s"] > 0 and math.isnan(row.measures["% of bandwidth"]) for row in rows)


def test_a_trace_tells_how_long_the_device_was_busy(tmp_path: Path) -> None:
    spans = [
        {"cat": "kernel", "name": "product", "ts": 100.0, "dur": 30.0},
        {"cat": "kernel", "name": "norm", "ts": 120.0, "dur": 20.0},  # beside the product, on another stream
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


def test_parts_end_within_nine_minutes() -> None:
    assert sum(part.seconds for part in PARTS) < 9 * 60
    assert GOALS.keys() <= {part.name for part in PARTS}
