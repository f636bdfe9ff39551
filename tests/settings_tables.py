"""The table of docs/models.md about the settings of folders: a row for settings of a format that are treated alike.

    python tests/settings_tables.py

writes it.
"""

import re
from pathlib import Path

from engine_server.model_sources import settings_tables
from engine_server.model_sources.folder_settings import Format, Setting, is_empty

PAGE = Path(__file__).parents[1] / "docs" / "models.md"
HEADER = "| format | settings | treatment | why |\n| --- | --- | --- | --- |\n"
FORMATS = [value for value in vars(settings_tables).values() if isinstance(value, Format)]


def rows(format: Format) -> list[str]:
    """Return the rows of one format, those of its class first."""
    groups: dict[tuple[str, str], list[str]] = {}
    for name, setting in format.all.items():
        groups.setdefault((setting.verdict, setting.reason), []).append(described(name, setting))
    return [
        f"| {format.name} | {', '.join(names)} | {verdict} | {reason} |"
        for (verdict, reason), names in groups.items()
    ]


def described(name: str, setting: Setting) -> str:
    """Return a setting's name, and beside one that is refused the value that isn't."""
    return f"`{name}`" if is_empty(setting.default) else f"`{name}` ({setting.default})"


def table() -> str:
    return HEADER + "".join(f"{row}\n" for format in FORMATS for row in rows(format))


def documented() -> str:
    """Return the table in the document."""
    text = PAGE.read_text()
    found = re.match(re.escape(HEADER) + r"(?:\|.*\n)*", text[text.index(HEADER) :])
    assert found is not None
    return found[0]


if __name__ == "__main__":
    PAGE.write_text(PAGE.read_text().replace(documented(), table()))
