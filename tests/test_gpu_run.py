"""The run on a GPU machine, with commands that need no GPU."""

import sys
from pathlib import Path

import gpu_run

TESTS = Path(gpu_run.__file__).parent


def test_the_report_has_the_output_of_failed_and_hanging_commands_and_of_those_after_them(
    tmp_path: Path,
) -> None:
    def command(code: str) -> list[str]:
        return [sys.executable, "-c", code]

    hang = ["sh", "-c", "echo begun; exec tail -f /dev/null"]
    stages = [
        gpu_run.Stage("first", 60, [command("print('one'); raise SystemExit(3)"), command("print('two')")]),
        gpu_run.Stage("second", 2, [hang]),
        gpu_run.Stage("third", 60, [command("import engine_server; print('three')")]),
    ]
    file = tmp_path / "logs" / "report.txt"
    assert not gpu_run.report(stages, file)
    text = file.read_text()
    places = [
        text.index(part)
        for part in (
            "== first: 2 run, 1 failed", "-- status 3, ", "one\n", "-- status 0, ", "two\n",
            "== second: 1 run, 1 failed", "-- took too long, ", "begun\n", "== third: 1 run, 0 failed", "three\n",
            "== failed",
        )
    ]  # fmt: skip
    assert places == sorted(places)


def test_every_test_of_kernels_and_gpus_runs_once_and_all_ends_within_ten_minutes() -> None:
    stages = [*gpu_run.stages()]
    files = [command[-1] for stage in stages for command in stage.commands if "pytest" in command]
    expected = {
        str(file.relative_to(gpu_run.ROOT))
        for folder in ("kernels", "gpu")
        for file in (TESTS / folder).glob("test_*.py")
    }
    assert sorted(files) == sorted(expected)
    assert sum(stage.seconds for stage in stages) < 600
