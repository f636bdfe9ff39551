"""Print the picture of README's first screen, an SVG, from the text of the recorded session: `make figures`."""

import io

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from scripts.terminal.record import PROMPT, ROOT, SECOND_PROMPT, TEXT, WIDTH

PICTURE = ROOT / "docs" / "terminal.svg"

BACKGROUND, FOREGROUND = (13, 17, 23), (201, 209, 217)
COMMAND, SECOND_COMMAND = "bold #7ee787", "bold #ff7b72"
# The lines of a command after its first.
CONTINUED = "    "

# rich's own template loads a font from another site, which browsers don't do for a picture in a page.
TEMPLATE = """\
<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg" role="img">
<style>
.{unique_id}-matrix {{ font: {char_height}px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace }}
{styles}
</style>
<defs>
{lines}
</defs>
{chrome}
<g class="{unique_id}-matrix" transform="translate({terminal_x}, {terminal_y})">
{matrix}
</g>
</svg>
"""


def style_of(line: str, previous: str) -> str:
    """Return the style of a line; that of the previous line goes on in a command."""
    if line.startswith(SECOND_PROMPT):
        return SECOND_COMMAND
    if line.startswith(PROMPT) or (line.startswith(CONTINUED) and previous == COMMAND):
        return COMMAND
    return ""


def draw(transcript: str) -> str:
    """Return the picture of a transcript."""
    lines = transcript.splitlines()
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    style = ""
    for line in lines:
        style = style_of(line, style)
        console.print(Text(line, style), soft_wrap=True)
    console.print()  # an empty last line, for which rich defines no clip path
    theme = TerminalTheme(BACKGROUND, FOREGROUND, [BACKGROUND] * 8)
    return console.export_svg(title="", theme=theme, code_format=TEMPLATE, unique_id="terminal")


if __name__ == "__main__":
    print(draw(TEXT.read_text()), end="")
