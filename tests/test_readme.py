"""README.md, its picture, and the figures of its links; tests/test_documents.py is for all documents."""

import json
import re
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import throughput_chart
from scripts.terminal import draw, record

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
BENCHMARKS = (ROOT / "docs/benchmarks.md").read_text()
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
FIRST_LINES = 25
MOST_WORDS = 900


def block(language: str) -> str:
    """Return README's first fenced block in a language."""
    return README.partition(f"\n```{language}\n")[2].partition("```")[0]


def result(name: str) -> Any:
    return json.loads((ROOT / "benchmarks/results" / name).read_text())


def by_clients(figures: dict[str, dict[str, dict[str, float]]], side: str) -> str:
    return ", ".join(f"{figures[f'{count} at a time, tok/s'][side]['median']:.0f}" for count in (1, 8, 32))


# The first screen


def test_the_two_commands_are_among_the_first_lines() -> None:
    commands = [line.partition("#")[0].strip() for line in block("sh").splitlines()]
    assert commands == ["make up", "make test"]
    assert README.splitlines().index(block("sh").splitlines()[0]) < FIRST_LINES


def test_readme_is_short() -> None:
    assert len(README.split()) <= MOST_WORDS


def test_status_stands_above_the_first_table_and_heading() -> None:
    before, found, _ = README.partition("**Status: alpha**")
    assert found
    assert not re.search(r"^(\||## )", before, re.MULTILINE)


def test_deployment_is_the_example_that_an_api_server_accepts() -> None:
    comment, manifest = record.EXAMPLE.read_text().split("\n", 1)
    assert comment.startswith("#")
    assert block("yaml") == manifest


def test_times_of_the_commands_are_those_of_the_tables() -> None:
    phases = re.search(r"\| (\d+) \| (\d+) \|$", BENCHMARKS.partition("| `.venv` |")[2], re.MULTILINE)
    minutes = re.search(r"^\| `make test` \|.*?([\d.]+) \|$", CONTRIBUTING, re.MULTILINE)
    assert phases and minutes
    first, later, tests = (*phases.groups(), minutes[1])
    assert f": {first} s the first time, {later} s later\n" in block("sh")
    assert f": {tests} minutes\n" in block("sh")


# The picture


def test_picture_is_drawn_from_the_text_of_the_session() -> None:
    assert draw.PICTURE.read_text() == draw.draw(record.TEXT.read_text()), "run make figures"


def test_session_has_the_commands_of_its_script() -> None:
    typed = re.findall(
        r"^(?:\[second terminal\] )?\$ (.*(?:\n {4}.*)*)", record.TEXT.read_text(), re.MULTILINE
    )
    assert len(typed) == len(record.COMMANDS)
    for command, template in zip(typed, record.COMMANDS, strict=True):
        pattern = re.escape(template).replace(re.escape("{pod}"), r"chat-engine-\w+-\w+")
        assert re.fullmatch(pattern, command)


def test_session_has_the_answer_before_and_after_its_engine_is_killed() -> None:
    before, _, after = record.TEXT.read_text().partition(f"\n{record.SECOND_PROMPT}")
    _, *rest = after.partition(f"\n{record.PROMPT}")[0].splitlines()
    assert before.rpartition(record.ASK)[2].strip()
    assert len(" ".join(rest)) > record.WIDTH
    assert "1 (" in after.partition(record.LIST)[2]  # the restart of the engine


# Figures


def test_figures_of_cpus_are_those_of_the_committed_results() -> None:
    figures = result("cpu.json")["figures"]
    batch = result("engine-cpu-2-in-process-32.json")["tokens_per_second"]["32"]
    vllm = by_clients(figures, "vLLM, bfloat16, HTTP")
    assert f"| {by_clients(figures, 'Fairlead, bfloat16, HTTP')} | vLLM 0.32: {vllm} |" in BENCHMARKS
    openvino = by_clients(figures, "OpenVINO, GGUF, in process")
    quantised = by_clients(figures, "Fairlead, GGUF, in process")
    assert f"| {quantised} | OpenVINO GenAI 2026.4.1: {openvino} |" in BENCHMARKS
    others = f"transformers' continuous batching: {batch['continuous batching']:.0f}"
    assert f"| {batch['fairlead']:.0f} | {others} |" in BENCHMARKS


def test_chart_is_drawn_from_the_committed_results() -> None:
    assert throughput_chart.CHART.read_text() == throughput_chart.draw(), "run make figures"


def test_figures_of_the_router_are_those_of_the_committed_results() -> None:
    rounds = result("router.paced.json")["rounds"]
    cost = {side: f"{median(one['cpu_us'] for one in values):.0f} us" for side, values in rounds.items()}
    beside = f"nginx {cost['nginx proxy']}; vllm-router {cost['vllm-router round_robin']}"
    assert f"| {cost['fairlead']} | {beside} |" in BENCHMARKS


def test_figures_of_the_gpu_are_those_of_the_committed_results() -> None:
    rows = result("gpu-h200.json")["parts"]["Llama-3.1-8B"]["rows"]
    speed = {row["name"]: f"{row['measures'].get('tok/s', 0):,.0f}" for row in rows}
    assert f"| {speed['decode 256']}; {speed['prefill']} | not measured | NVIDIA H200" in BENCHMARKS


def test_requests_that_did_not_fail_are_those_of_the_table() -> None:
    table = BENCHMARKS.partition("## Operations under load")[2].partition("By hand")[0]
    requests = [
        int(count.replace(",", "")) for count in re.findall(r"\| ([\d,]+) \| 0 \|$", table, re.MULTILINE)
    ]
    assert len(requests) == table.count("\n| ") - 1  # each row but the head
    assert f"0 of {sum(requests):,} requests failed" in README
