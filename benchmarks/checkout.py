"""The argument of benchmarks that names another checkout of this repository, to compare with this one."""

import argparse
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]


def checkout(text: str) -> Path:
    """Return the folder of a checkout, for a parser's argument. Processes of its code run in it, so it is absolute."""
    folder = Path(text).resolve()
    if not (folder / "engine_server").is_dir():
        raise argparse.ArgumentTypeError(f"{text} is no checkout: it has no folder engine_server")
    return folder
