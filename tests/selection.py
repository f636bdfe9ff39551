"""The test files that a change can affect."""

import ast
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

# Where the tests of a folder lie that is not named like theirs, the longest first.
HOMES = (
    ("engine_server/contract/", "contract"),
    ("engine_server/router/", "router"),
    ("engine_server/bench/", "bench"),
    ("engine_server/", ""),
    ("operator/llm_operator/", "operator"),
    ("operator/llm_local/", "local"),
    ("charts/", "charts"),
    ("manifests/", "charts"),
    ("benchmarks/", "bench"),
)
PACKAGES = ("engine_server", "llm_operator", "llm_local")


def changed_tests(root: Path) -> list[Path]:
    """Return the files in tests/ that the changes since main touch, those not committed included.

    These are changed tests, tests below a changed conftest.py, tests of a changed file's folder, and tests that import
    a changed module, directly or through modules that import it.
    """
    changed = list_changes(root)
    homes = [root / "tests" / home for home in filter(None, map(home_of, changed))]
    modules = affected_modules({module_of(path) for path in changed if path.suffix == ".py"}, root)
    tests = root / "tests"
    changed_here = {root / path for path in changed}
    helpers = {path.stem: path for path in tests.glob("*.py") if not path.stem.startswith("test_")}
    selected = []
    for file in sorted(tests.rglob("test_*.py")):
        sources = list(read_with_helpers(file, helpers))
        conftests = [folder / "conftest.py" for folder in file.parents if folder.is_relative_to(tests)]
        for conftest in filter(Path.exists, conftests):
            sources += [path for path in read_with_helpers(conftest, helpers) if path.parent == tests]
        if (
            changed_here & {*sources, *conftests}
            or modules & imported_modules(file)
            or any(file.is_relative_to(home) for home in homes)
        ):
            selected.append(file)
    return selected


def list_changes(root: Path) -> list[Path]:
    """Return the files that differ from where this branch left main, relative to the root."""

    def git(*arguments: str) -> list[str]:
        done = subprocess.run(["git", *arguments], cwd=root, check=True, capture_output=True, text=True)
        return done.stdout.splitlines()

    (base,) = git("merge-base", "main", "HEAD")
    return [
        Path(name) for name in git("diff", "--name-only", base) + git("ls-files", "-o", "--exclude-standard")
    ]


def home_of(path: Path) -> str | None:
    """Return the folder in tests/ that mirrors a source's folder, or None."""
    for prefix, home in HOMES:
        if str(path).startswith(prefix):
            inner = path.parent.relative_to(prefix) if path.is_relative_to(prefix) else Path()
            mirrored = Path(home, inner)
            return None if mirrored == Path() else str(mirrored)
    return None


def module_of(path: Path) -> str:
    """Return the name by which a source file is imported."""
    parts = path.with_suffix("").parts
    parts = parts[1:] if parts[0] == "operator" else parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def affected_modules(changed: set[str], root: Path) -> set[str]:
    """Return changed modules of ours and all modules that import them, directly or not."""
    import grimp  # takes seconds, and comes with the dependencies of lint

    graph = grimp.build_graph(*PACKAGES, cache_dir=str(root / ".import_linter_cache"))
    ours = changed & graph.modules
    return ours.union(*map(graph.find_downstream_modules, ours))


@cache
def imported_modules(file: Path) -> frozenset[str]:
    """Return the names of the modules that a file may import, at its head or in functions."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        match node:
            case ast.Import():
                found.update(alias.name for alias in node.names)
            case ast.ImportFrom(module=str(module), level=0):
                found.add(module)
                found.update(f"{module}.{alias.name}" for alias in node.names)
    return frozenset(found)


def read_with_helpers(file: Path, helpers: dict[str, Path]) -> Iterator[Path]:
    """Yield a test file and the modules in tests/ that it imports, directly or not."""
    pending, seen = [file], set()
    while pending:
        current = pending.pop()
        if current not in seen:
            seen.add(current)
            yield current
            pending += [helpers[name] for name in imported_modules(current) if name in helpers]
