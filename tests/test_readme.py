"""The first screen of README.md; tests/test_documents.py is for all documents."""

import json
import re
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import throughput_chart

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
SECTION = "## Try it on this machine"
FENCED = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)


def result(name: str) -> Any:
    return json.loads((ROOT / "benchmarks/results" / name).read_text())


def by_clients(figures: dict[str, dict[str, dict[str, float]]], side: str) -> str:
    return ", ".join(f"{figures[f'{count} at a time, tok/s'][side]['median']:.0f}" for count in (1, 8, 32))


def test_first_screen_has_two_commands() -> None:
    section = README.partition(SECTION)[2].partition("\n## ")[0]
    commands = [line for block in FENCED.findall(section) for line in block.splitlines()]
    assert commands == ["make up", "make test"]


def test_figures_of_cpus_are_those_of_the_committed_results() -> None:
    figures = result("cpu.json")["figures"]
    batch = result("engine-cpu-2-in-process-32.json")["tokens_per_second"]["32"]
    vllm = by_clients(figures, "vLLM, bfloat16, HTTP")
    assert f"| {by_clients(figures, 'Fairlead, bfloat16, HTTP')} | vLLM 0.32: {vllm} |" in README
    openvino = by_clients(figures, "OpenVINO, GGUF, in process")
    quantised = by_clients(figures, "Fairlead, GGUF, in process")
    assert f"| {quantised} | OpenVINO GenAI 2026.4.1: {openvino} |" in README
    others = f"transformers' continuous batching: {batch['continuous batching']:.0f}"
    assert f"| {batch['fairlead']:.0f} | {others} |" in README


def test_chart_is_drawn_from_the_committed_results() -> None:
    assert throughput_chart.CHART.read_text() == throughput_chart.draw(), "run make figures"


def test_figures_of_the_router_are_those_of_the_committed_results() -> None:
    rounds = result("router.paced.json")["rounds"]
    cost = {side: f"{median(one['cpu_us'] for one in values):.0f} us" for side, values in rounds.items()}
    beside = f"nginx {cost['nginx proxy']}; vllm-router {cost['vllm-router round_robin']}"
    assert f"| {cost['fairlead']} | {beside} |" in README


def test_figures_of_the_gpu_are_those_of_the_committed_results() -> None:
    rows = result("gpu-h200.json")["parts"]["Llama-3.1-8B"]["rows"]
    speed = {row["name"]: f"{row['measures'].get('tok/s', 0):,.0f}" for row in rows}
    assert f"| {speed['decode 256']}; {speed['prefill']} | not measured | NVIDIA H200" in README


def test_requests_that_did_not_fail_are_those_of_the_table() -> None:
    page = (ROOT / "docs/benchmarks.md").read_text()
    table = page.partition("## Operations under load")[2].partition("By hand")[0]
    requests = [
        int(count.replace(",", "")) for count in re.findall(r"\| ([\d,]+) \| 0 \|$", table, re.MULTILINE)
    ]
    assert len(requests) == table.count("\n| ") - 1  # each row but the head
    assert f"0 of {sum(requests):,} requests failed" in README
