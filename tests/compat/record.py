"""Recording of a release: `PYTHONPATH=tests .venv/bin/python -m compat.record` writes tests/compat/VERSION/."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import yaml
from compat import by_engine, by_operator, by_others, by_router, contract_decoders
from compat.exchange import Exchange, record

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "fairlead"
CONTRACT = ROOT / "engine_server" / "contract"
# What a zip has in place of times.
EPOCH = (1980, 1, 1, 0, 0, 0)
EXCHANGES = {
    exchange.name: exchange
    for module in (by_router, by_engine, by_operator, by_others)
    for exchange in module.EXCHANGES
}


def write_release(folder: Path) -> None:
    """Write the packaged chart (which takes helm on PATH), the contract as a zip, and the recordings."""
    folder.mkdir()
    subprocess.run(["helm", "package", CHART, "--destination", folder], check=True)
    write_contract(folder / "contract.zip")
    (folder / "recordings").mkdir()
    for exchange in EXCHANGES.values():
        write_recording(folder / "recordings" / f"{exchange.name}.json", exchange)


def write_contract(file: Path) -> None:
    """Write the package `engine_server.contract`, without the rest of `engine_server`, and a program that decodes."""
    program = Path(contract_decoders.__file__).read_bytes()
    sources = {"__main__.py": program, "engine_server/__init__.py": b""}
    for source in sorted(CONTRACT.rglob("*.py")):
        sources[source.relative_to(ROOT).as_posix()] = source.read_bytes()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in sources.items():
            archive.writestr(zipfile.ZipInfo(name, EPOCH), content, zipfile.ZIP_DEFLATED)


def write_recording(file: Path, exchange: Exchange) -> None:
    recording: dict[str, Any] = record(exchange)
    file.write_text(json.dumps(recording, indent=1, ensure_ascii=False) + "\n")


def version() -> str:
    """Return the version of the chart, which is that of the release."""
    return str(yaml.safe_load((CHART / "Chart.yaml").read_text())["version"])


if __name__ == "__main__":
    release = Path(__file__).parent / version()
    if release.exists():
        sys.exit(f"{release} is there already; a release says what it said")
    write_release(release)
