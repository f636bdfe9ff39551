"""The conversion of a GGUF file: its time, and the most memory that the process holds during it.

    python -m benchmarks.gguf FILE [--dequantized]

The conversion runs in a process of its own. Its memory is the largest resident set, of which the mapped file is a part;
that before the conversion, with the libraries imported, is subtracted.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.record import save


def convert_here(file: Path, dense: bool) -> dict[str, float]:
    """Convert `file` in this process; return seconds, and MiB of memory and of the result."""
    import transformers

    from engine_server.model_sources.gguf import conversion as gguf

    transformers.AutoConfig.from_pretrained(file.parent, gguf_file=file.name)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with tempfile.TemporaryDirectory() as place:
        start = time.monotonic()
        gguf.convert(file, Path(place), dense)
        seconds = time.monotonic() - start
        size = sum(path.stat().st_size for path in Path(place).glob("*.safetensors"))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return {
        "seconds": round(seconds, 1),
        "file_mib": file.stat().st_size >> 20,
        "result_mib": size >> 20,
        "peak_mib": peak >> 10,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the conversion of a GGUF file.")
    parser.add_argument("file", type=Path)
    parser.add_argument("--dequantized", action="store_true", help="dequantise all weights to bfloat16")
    parser.add_argument("--here", action="store_true", help="convert in this process, and print JSON")
    flags = parser.parse_args()
    if flags.here:
        print(json.dumps(convert_here(flags.file, flags.dequantized)))
        return
    command = [sys.executable, "-m", "benchmarks.gguf", *sys.argv[1:], "--here"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    figures = json.loads(done.stdout.splitlines()[-1])
    print(figures)
    print(f"saved {save('gguf', figures)}")


if __name__ == "__main__":
    main()
