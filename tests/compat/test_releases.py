"""Programs of different releases understand each other: each generation of recordings against today's code, both ways.

The generation `next` is what today's programs write; each of the others is a release's, which never changes.
"""

import json
import pkgutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from compat.exchange import content_of, missing, missing_text, plain
from compat.record import CONTRACT_NAME, EXCHANGES, HERE, NEXT, recording_of, write_contract

import engine_server.contract

RECORDINGS = sorted(HERE.glob("*/*.json"))
WITH_DECODER = [file for file in RECORDINGS if EXCHANGES[file.stem].decoder]
WITHOUT_DECODER = [file for file in RECORDINGS if not EXCHANGES[file.stem].decoder]
# Constants of the contract that no recording has, with the reason.
NOT_RECORDED = {
    "labels.ROUTER_PORT": "the chart has it",
    "labels.METRICS_PORT": "the chart has it",
    "labels.SERVICE_NAME_LABEL": "Kubernetes has it",
    "labels.REFETCHED_FOR_ANNOTATION": "it is written once a model was lost",
    "labels.UNUSABLE_MODEL_ANNOTATION": "it is written for a model that no repetition makes usable",
}


def each(recordings: list[Path]) -> pytest.MarkDecorator:
    """Return the mark that runs a test for each recording."""
    names = [f"{file.parent.name}-{file.stem}" for file in recordings]
    return pytest.mark.parametrize("recording", recordings, ids=names)


def cases_of(recording: Path) -> dict[str, Any]:
    cases: dict[str, Any] = json.loads(recording.read_text())["cases"]
    return cases


@cache
def written_today(name: str) -> dict[str, bytes]:
    return EXCHANGES[name].write()


def decode_with(contract: Path, cases: list[tuple[str | None, bytes]]) -> list[Any]:
    """Return what the contract in a zip makes of bytes, each with its decoder, in a process of its own."""
    done = subprocess.run(
        [sys.executable, contract],
        input=json.dumps([(decoder, content.decode()) for decoder, content in cases]),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["contract"].startswith(str(contract))
    results: list[Any] = answer["results"]
    return results


@pytest.fixture(scope="session")
def decode_all(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[Path], dict[tuple[str, str], tuple[Any, Any]]]:
    """Return a function that has the contract of a generation decode what it has recorded and what today's code writes.

    It returns both by exchange and case.
    """
    todays = tmp_path_factory.mktemp("contract") / CONTRACT_NAME
    write_contract(todays)

    @cache
    def decoded(generation: Path) -> dict[tuple[str, str], tuple[Any, Any]]:
        contract = todays if generation == NEXT else generation / CONTRACT_NAME
        recorded = {
            (file.stem, case): content_of(content)
            for file in WITH_DECODER
            if file.parent == generation
            for case, content in cases_of(file).items()
        }
        today = {(name, case): written_today(name)[case] for name, case in recorded}
        of_generation, of_today = (
            decode_with(
                contract, [(EXCHANGES[name].decoder, content) for (name, _), content in contents.items()]
            )
            for contents in (recorded, today)
        )
        return dict(zip(recorded, zip(of_generation, of_today, strict=True), strict=True))

    return decoded


@pytest.mark.parametrize("name", EXCHANGES)
def test_next_is_what_todays_programs_write(name: str) -> None:
    recorded = NEXT / f"{name}.json"

    assert recorded.read_text() == recording_of(EXCHANGES[name]), (
        "run make recordings, and say in the commit which exchange has changed, and what an upgrade would do"
    )


def test_next_has_no_other_files() -> None:
    assert {file.name for file in NEXT.iterdir()} == {f"{name}.json" for name in EXCHANGES}


@each(RECORDINGS)
def test_today_reads_what_a_release_wrote_as_the_release_did(recording: Path) -> None:
    read = EXCHANGES[recording.stem].read

    for case, recorded in cases_of(recording).items():
        lost = list(missing(recorded["read"], plain(read(content_of(recorded)))))

        assert not lost, case


@each(WITH_DECODER)
def test_the_contract_of_a_release_decodes_what_today_writes(recording: Path, decode_all: Any) -> None:
    decoded = decode_all(recording.parent)

    for case in cases_of(recording):
        recorded, today = decoded[recording.stem, case]

        assert "failure" not in recorded
        assert not list(missing(recorded, today)), case


@each(WITHOUT_DECODER)
def test_today_writes_all_that_a_release_wrote(recording: Path) -> None:
    for case, recorded in cases_of(recording).items():
        lost = list(missing_text(content_of(recorded), written_today(recording.stem)[case]))

        assert not lost, case


def wire_constants() -> dict[str, str]:
    """Return the contract's headers, labels and annotations, and the names of its paths and fields, as text."""
    constants = {}
    for found in pkgutil.walk_packages(engine_server.contract.__path__, "engine_server.contract."):
        module = found.name.rpartition(".")[2]
        for name, value in vars(import_module(found.name)).items():
            is_wired = module in ("headers", "labels") or name.endswith(("_PATH", "_FIELD", "_PREFIX"))
            if name.isupper() and is_wired and isinstance(value, str | int | bytes):
                text = value.decode() if isinstance(value, bytes) else str(value)
                constants[f"{module}.{name}"] = text
    return constants


def test_every_header_label_and_annotation_is_recorded() -> None:
    contents = [content for name in EXCHANGES for content in written_today(name).values()]
    text = b"\n".join(contents).decode().lower()

    absent = {name for name, value in wire_constants().items() if value.lower() not in text}

    assert absent == NOT_RECORDED.keys(), "add it to an exchange: see tests/compat/README.md"


@pytest.mark.parametrize(
    ("module", "before", "after"),
    [
        ("headers", "Fairlead-Deployment", "Fairlead-Target"),
        ("labels", "/spec-hash", "/spec-digest"),
        ("continuation", "token_ids: list[Count]", "tokens: list[Count]"),
        ("endpoints_file", "served_names", "aliases"),
    ],
)
def test_a_name_that_differs_between_two_contracts_is_noticed(
    tmp_path: Path, module: str, before: str, after: str
) -> None:
    today, other = tmp_path / "today.zip", tmp_path / "other.zip"
    write_contract(today)
    with zipfile.ZipFile(today) as source, zipfile.ZipFile(other, "w") as target:
        for name in source.namelist():
            content = source.read(name).decode()
            changed = content.replace(before, after) if name.endswith(f"/{module}.py") else content
            target.writestr(name, changed)
    cases = [
        (exchange.decoder, content)
        for exchange in EXCHANGES.values()
        if exchange.decoder
        for content in written_today(exchange.name).values()
    ]

    pairs = zip(decode_with(today, cases), decode_with(other, cases), strict=True)

    assert any(list(missing(*pair)) for pair in pairs)


@pytest.mark.parametrize(
    ("today", "lost"),
    [
        (b'{"a": {"b": [1, 2]}, "c": 3}', []),
        (b'{"a": {"b": [1, 2, 3]}}', [".a.b was [1, 2] and is [1, 2, 3]"]),
        (b'{"a": {"b": [1, 3]}}', [".a.b[1] was 2 and is 3"]),
        (b'{"a": {}}', [".a.b is gone"]),
    ],
)
def test_json_may_have_more_fields_and_loses_none(today: bytes, lost: list[str]) -> None:
    assert list(missing_text(b'{"a": {"b": [1, 2]}}', today)) == lost


def test_a_text_may_go_on_and_loses_nothing() -> None:
    assert not list(missing_text(b"running=1, kv=0.5", b"running=1, kv=0.5, speed=9"))
    assert list(missing_text(b"running=1, kv=0.5", b"running=1"))
