"""`fairlead engine MODEL --explain-template`: the format of a model's answers, and why it is the one."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import yaml

from engine_server.contract.cluster.sources.hub import HubRepository
from engine_server.engine.input.tokenizer import read_tokenizer
from engine_server.model_sources import resolve
from engine_server.model_sources.source import locate
from engine_server.server.conversation.derivation.process import TemplateProcess

if TYPE_CHECKING:
    from argparse import Namespace

    from engine_server.server.settings import ApiSettings

# Of an entry of our formats, the keys that only choose among these.
CHOICE = {"marks", "reasoning_mark", "in_words"}


def explain_template(options: Namespace, settings: ApiSettings) -> str:
    """Return the format of a model's answers as YAML that --response-template takes, with the reasons as comments.

    No weights are read. Raises ValueError for a model without a tokenizer, or for a bad template.
    """
    with TemplateProcess() as process:
        from engine_server.engine.conversation.chat_template import (
            ChatTemplate,  # imports transformers
        )
        from engine_server.server.conversation.derivation.probes import Probes
        from engine_server.server.conversation.find_layout import find_format, refusals

        source = options.tokenizer or tokenizer_source(options.model, options.load_format)
        tokenizer = read_tokenizer(source, options.trust_remote_code and Path(source).is_dir())
        text = settings.read_chat_template()
        if text is not None:
            tokenizer.chat_template = text
        template = ChatTemplate.of(tokenizer)
        facts = process.facts(template)
    file = settings.response_template
    found = find_format(
        template, facts, Path(file) if file else None, getattr(tokenizer, "response_template", None)
    )
    lines = [
        f"source: {found.source}",
        f"the chat template takes tools: {'yes' if template.takes_tools else 'no'}",
    ]
    lines += [f"opening: {one!r}" for one in Probes(template).openings]
    capabilities = msgspec.json.encode(facts.capabilities).decode()
    lines += [f"capabilities: {capabilities}"]
    lines += [f"not used: {reason}" for reason in refusals(facts)]
    entry = {key: value for key, value in found.entry.items() if key not in CHOICE}
    written = yaml.dump(entry, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=math.inf)
    return "".join([*comments(lines), written])


def tokenizer_source(model: str, load_format: str) -> str:
    """Return the folder or the hub's name of a model's tokenizer, with weights only if both are one file."""
    match locate(model):
        case Path() as folder if folder.is_dir():
            return str(folder)
        case HubRepository(file=None, revision=None) as repository:
            return repository.repository
        case _:
            return str(resolve(model, load_format=load_format))


class Dumper(yaml.SafeDumper):
    """Writes texts with line ends in quotes, on one line."""


def write_text(dumper: Dumper, text: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"' if "\n" in text else None)


Dumper.add_representer(str, write_text)


def comments(lines: list[str]) -> Iterator[str]:
    """Yield lines as comments of YAML."""
    for line in lines:
        yield f"# {' '.join(line.splitlines())}\n"
