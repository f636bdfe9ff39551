"""Print README's chart of throughput beside vLLM and OpenVINO, an SVG, from the committed results: `make figures`."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
CHART = ROOT / "docs" / "throughput.svg"

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
    other: str
    file: str
    section: str


PANELS = (
    Panel("bfloat16, over HTTP", "vLLM", "cpu-vllm.json", "over HTTP, bfloat16"),
    Panel("Q4_1, in process", "OpenVINO", "cpu-openvino.json", "in process, GGUF"),
)


def draw_bar(left: int, speed: float, scale: float, kind: str) -> Iterator[str]:
    height = speed * scale
    yield f'<rect class="{kind}" x="{left}" y="{BASE - height:.1f}" width="{BAR}" height="{height:.1f}"/>'
    yield f'<text x="{left + BAR // 2}" y="{BASE - height - 5:.1f}">{speed:.0f}</text>'


def draw_panel(left: int, width: int, panel: Panel, scale: float) -> Iterator[str]:
    speeds = read(panel)
    yield f'<text x="{left + width // 2}" y="18">{panel.title}: Fairlead (blue), {panel.other} (grey)</text>'
    for group, (count, sides) in enumerate(speeds.items()):
        start = left + FIRST + group * (2 * BAR + GAP)
        yield from draw_bar(start, sides["fairlead"], scale, "ours")
        yield from draw_bar(start + BAR, sides[panel.other], scale, "other")
        yield f'<text x="{start + BAR}" y="{BASE + 18}">{count}</text>'
    yield f'<text x="{left + width // 2}" y="{BASE + 38}">requests at a time</text>'


def read(panel: Panel) -> dict[str, dict[str, float]]:
    speeds: dict[str, dict[str, float]] = json.loads(
        (ROOT / "benchmarks" / "results" / panel.file).read_text()
    )[panel.section]
    return speeds


def draw() -> str:
    """Return the chart, in light and dark colours by the reader's preference."""
    fastest = max(speed for panel in PANELS for sides in read(panel).values() for speed in sides.values())
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
