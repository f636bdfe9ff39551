"""Print the chart of throughput beside vLLM and OpenVINO, an SVG, from the committed results: `make figures`."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
CHART = ROOT / "docs" / "throughput.svg"
RESULTS = ROOT / "benchmarks" / "results" / "cpu.json"

# Sizes in pixels.
WIDTH, HEIGHT = 760, 230
BASE, TALLEST = 180, 120
BAR, GAP, FIRST = 42, 20, 40

STYLE = """
    text { font: 12px sans-serif; fill: #24292f; text-anchor: middle }
    .ours { fill: #1f6feb }
    .other { fill: #8c959f }
    line { stroke: #8c959f }
    @media (prefers-color-scheme: dark) { text { fill: #e6edf3 } .other { fill: #6e7681 } }
"""


class Panel(NamedTuple):
    """A side by side comparison: output tokens/s by requests at a time."""

    title: str
    ours: str
    other: str


PANELS = (
    Panel("bfloat16, over HTTP", "Fairlead, bfloat16, HTTP", "vLLM, bfloat16, HTTP"),
    Panel("Q4_1, in process", "Fairlead, GGUF, in process", "OpenVINO, GGUF, in process"),
)


def draw_bar(left: int, speed: float, scale: float, kind: str) -> Iterator[str]:
    height = speed * scale
    yield f'<rect class="{kind}" x="{left}" y="{BASE - height:.1f}" width="{BAR}" height="{height:.1f}"/>'
    yield f'<text x="{left + BAR // 2}" y="{BASE - height - 5:.1f}">{speed:.0f}</text>'


def draw_panel(left: int, width: int, panel: Panel, scale: float) -> Iterator[str]:
    other = panel.other.partition(",")[0]
    yield f'<text x="{left + width // 2}" y="18">{panel.title}: Fairlead (blue), {other} (grey)</text>'
    for group, (count, speeds) in enumerate(read(panel).items()):
        start = left + FIRST + group * (2 * BAR + GAP)
        yield from draw_bar(start, speeds[0], scale, "ours")
        yield from draw_bar(start + BAR, speeds[1], scale, "other")
        yield f'<text x="{start + BAR}" y="{BASE + 18}">{count}</text>'
    yield f'<text x="{left + width // 2}" y="{BASE + 38}">requests at a time</text>'


def read(panel: Panel) -> dict[str, tuple[float, float]]:
    """Return our output tokens/s and the other's, by requests at a time."""
    figures = json.loads(RESULTS.read_text())["figures"]
    return {
        work.split()[0]: (sides[panel.ours]["median"], sides[panel.other]["median"])
        for work, sides in figures.items()
        if work.endswith("at a time, tok/s")
    }


def draw() -> str:
    """Return the chart, in light and dark colours by the reader's preference."""
    fastest = max(speed for panel in PANELS for speeds in read(panel).values() for speed in speeds)
    width = WIDTH // len(PANELS)
    parts = [
        part
        for index, one in enumerate(PANELS)
        for part in draw_panel(index * width, width, one, TALLEST / fastest)
    ]
    lines = "\n".join(f"  {part}" for part in parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="Output tokens a second beside vLLM and OpenVINO">\n  <style>{STYLE}  </style>\n'
        f'{lines}\n  <line x1="20" x2="{WIDTH - 20}" y1="{BASE}" y2="{BASE}"/>\n</svg>\n'
    )


if __name__ == "__main__":
    print(draw(), end="")
