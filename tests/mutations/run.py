"""python tests/mutations/run.py [--check] [PART...]: show that tests notice faults.

Applies each fault to a copy of the checkout's tracked files, and runs the tests that must notice it. The checkout
itself is not changed. With --check it only verifies that the edits can still be made.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import cache
import plan
import router
import scheduler
from fault import Fault

PARTS = {"cache": cache.FAULTS, "scheduler": scheduler.FAULTS, "router": router.FAULTS, "plan": plan.FAULTS}
CHECKOUT = Path(__file__).parents[2]
# Compiled, so git does not track them.
KERNELS = "engine_server/modeling/native/*.so"
# Seconds for the tests of one fault. A fault that only makes a test wait is not noticed: it would not be told from a
# busy machine.
LONGEST = 300
FAILED_TESTS = 1


def main() -> int:
    parser = argparse.ArgumentParser(description="Show that tests notice faults.")
    parser.add_argument("--check", action="store_true", help="only verify that each fault can be applied")
    parser.add_argument("parts", metavar="PART", nargs="*", help=f"of {', '.join(PARTS)} (default: all)")
    arguments = parser.parse_args()
    if unknown := set(arguments.parts) - PARTS.keys():
        parser.error(f"no such parts: {', '.join(sorted(unknown))}")
    faults = [fault for part in arguments.parts or PARTS for fault in PARTS[part]]
    if outdated := [problem for fault in faults if (problem := obstacle(fault))]:
        print(*outdated, sep="\n", file=sys.stderr)
        return 1
    if arguments.check:
        return 0
    with tempfile.TemporaryDirectory(prefix="fairlead-mutations-") as folder:
        return run(faults, Path(folder))


def obstacle(fault: Fault) -> str | None:
    """Return the reason why a fault cannot be applied to the checkout, or None."""
    for test in fault.tests:
        if not (CHECKOUT / test).is_file():
            return f"mutations: {test} does not exist"
    file = CHECKOUT / fault.file
    count = file.read_text().count(fault.old) if file.is_file() else 0
    return None if count == 1 else f"mutations: {fault.file} has {count} times, not once: {fault.old.strip()}"


def run(faults: Sequence[Fault], copy: Path) -> int:
    """Apply one fault after the other, print a table, and return the exit status."""
    copy_checkout(copy)
    code, failed, _ = run_tests(copy, sorted({test for fault in faults for test in fault.tests}), None)
    if code != 0:
        print(f"mutations: without a fault the tests end with {code}: {failed}", file=sys.stderr)
        return 1
    noticed = 0
    for fault in faults:
        file = copy / fault.file
        sound = file.read_text()
        file.write_text(sound.replace(fault.old, fault.new))
        code, failed, seconds = run_tests(copy, fault.tests, LONGEST)
        file.write_text(sound)
        is_noticed = code == FAILED_TESTS
        noticed += is_noticed
        by = failed if is_noticed else f"NOT NOTICED: the tests end with {code}"
        print(f"{seconds:5.0f} s  {fault.effect}\n         {by}", flush=True)
    print(f"{noticed} of {len(faults)} noticed")
    return 0 if noticed == len(faults) else 1


def copy_checkout(copy: Path) -> None:
    """Copy the tracked files and the compiled kernels, and compile the sources of Python.

    The bytecode is compared with its source by content: an edit may keep a file's size and time.
    """
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=CHECKOUT, check=True, capture_output=True, text=True
    )
    tracked = [CHECKOUT / name for name in listed.stdout.split("\0") if name]
    for source in (*tracked, *CHECKOUT.glob(KERNELS)):
        if source.is_file():
            target = copy / source.relative_to(CHECKOUT)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)
    compiled = ["-m", "compileall", "-q", "--invalidation-mode", "checked-hash", "engine_server", "operator"]
    subprocess.run([sys.executable, *compiled], cwd=copy, check=True)


def run_tests(copy: Path, tests: Sequence[str], longest: float | None) -> tuple[int, str, float]:
    """Return pytest's exit code, the test that failed, and the duration; end it after `longest`. Times in seconds."""
    shutil.rmtree(copy / ".hypothesis", ignore_errors=True)
    # The same examples each time, so that a fault is not noticed by chance.
    options = ["-x", "-q", "--tb=no", "-p", "no:cacheprovider", "--hypothesis-seed=0"]
    environment = {**os.environ, "PYTHONPATH": f"{copy}:{copy / 'operator'}", "OMP_NUM_THREADS": "1"}
    start = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", *options, *tests],
        cwd=copy, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        output, _ = process.communicate(timeout=longest)
    except subprocess.TimeoutExpired:
        process.kill()
        output, _ = process.communicate()
    failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", output, re.MULTILINE)
    return process.returncode, failed[1] if failed else output[-500:], time.monotonic() - start


if __name__ == "__main__":
    sys.exit(main())
