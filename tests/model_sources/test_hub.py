"""`hf://` against a real HTTP server with a hub's API."""

import json
import os
import re
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from model_sources.conftest import save_split
from model_sources.fake_hub import COMMIT, TOKEN, Hub
from tiers import tiered
from waiting import until

from engine_server.contract.cluster.fetch_container import UNUSABLE
from engine_server.model_sources import commit_of

FETCH = [sys.executable, "-m", "engine_server.cli", "fetch"]


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def settings(hub: Hub, tmp_path: Path) -> dict[str, str]:
    """Return the environment of a process that fetches from the hub."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    return {
        **kept,
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(tmp_path / "home"),
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }


@pytest.fixture
def fetch(settings: dict[str, str]):  # type: ignore[no-untyped-def]
    """Return a function that runs `fairlead fetch` in a new process, since the hub's library reads settings once."""

    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*FETCH, *arguments], capture_output=True, text=True, env={**settings, **environment}
        )

    return run


def test_downloads_only_the_files_that_are_used_and_of_the_named_revision_alone(
    fetch, hub: Hub, tmp_path: Path
) -> None:  # type: ignore[no-untyped-def]
    done = fetch("hf://org/open@v1")
    assert done.returncode == 0, done.stderr
    folder = Path(done.stdout.splitlines()[-1])
    assert folder.is_relative_to(tmp_path / "home")
    assert sorted(path.name for path in folder.iterdir()) == [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    ]
    assert f"fetching hf://org/open@v1 from {hub.url} ..." in done.stderr
    assert commit_of(folder) == COMMIT
    asked = [path.partition("?")[0].partition("/revision/")[2] for path in hub.asked if "/revision/" in path]
    assert set(asked) == {"v1"}


@pytest.mark.thorough
def test_gguf_file_of_a_repository_is_downloaded_and_converted(  # type: ignore[no-untyped-def]
    fetch, hub: Hub, tmp_path: Path, quantised_gguf: Path
) -> None:
    hub.files["sub/tiny.Q4_0.gguf"] = quantised_gguf.read_bytes()
    cache, place = tmp_path / "cache", tmp_path / "model"
    done = fetch("hf://org/open/sub/tiny.Q4_0.gguf@v1", FAIRLEAD_CACHE=str(cache))
    assert done.returncode == 0, done.stderr
    folder = Path(done.stdout.splitlines()[-1])
    assert folder.is_relative_to(cache / "model_sources/gguf")
    assert "kept quantised" in done.stderr
    names = {"config.json", "model.safetensors", "tokenizer.json"}
    assert names <= {path.name for path in folder.iterdir()}
    assert not [asked for asked in hub.asked if asked.endswith("/model.safetensors")]
    done = fetch("hf://org/open/sub/tiny.Q4_0.gguf@v1", "--to", str(place), HF_HUB_OFFLINE="1")
    assert done.stdout == f"{place}\n", done.stderr
    weights = "model.safetensors"
    assert (place / weights).read_bytes() == (folder / weights).read_bytes()
    assert commit_of(folder) == commit_of(place) == COMMIT


def test_split_gguf_file_is_downloaded_whole_or_not_at_all(fetch, hub: Hub, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    files = {file.name: file.read_bytes() for file in save_split(tmp_path / "m.gguf", 3)}
    last = max(files)
    hub.files |= {name: content for name, content in files.items() if name != last}
    done = fetch("hf://org/open/m-00002-of-00003.gguf", "--to", str(tmp_path / "model"))
    assert done.returncode == UNUSABLE
    assert f"is one of 3 files; missing in the repository: {last}" in done.stderr
    assert not [asked for asked in hub.asked if asked.startswith("GET") and "/resolve/" in asked]
    hub.files |= files
    assert fetch("hf://org/open/m-00002-of-00003.gguf", "--to", str(tmp_path / "model")).returncode == 0


def test_second_resolution_downloads_nothing_and_works_offline(fetch, hub: Hub) -> None:  # type: ignore[no-untyped-def]
    first = fetch("org/open")
    hub.asked.clear()
    assert fetch("org/open").stdout == first.stdout
    assert not [asked for asked in hub.asked if "/resolve/" in asked]
    hub.asked.clear()
    assert fetch("org/open", HF_HUB_OFFLINE="1").stdout == first.stdout
    assert hub.asked == []


def test_download_to_a_folder_is_complete_and_leaves_nothing_else(fetch, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    place = tmp_path / "models/model"
    done = fetch("hf://org/open", "--to", str(place))
    assert done.stdout == f"{place}\n", done.stderr
    names = [path.name for path in place.iterdir()]
    assert sorted(names) == [
        ".fairlead-checksums",
        ".fairlead-model",
        ".fairlead-sizes",
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    ]


@pytest.mark.parametrize(
    ("uri", "is_cached"),
    tiered(
        [("hf://org/open", False), ("hf://org/open", True), ("hf://org/open/tiny.gguf", True)],
        ("hf://org/open", True),
        more=[("hf://org/open", False), ("hf://org/open/tiny.gguf", True)],
    ),
)
def test_a_model_that_does_not_fit_the_disk_is_refused_before_it_is_fetched(  # type: ignore[no-untyped-def]
    fetch, hub: Hub, tmp_path: Path, uri: str, is_cached: bool
) -> None:
    hub.files["tiny.gguf"] = b"weights"
    hub.reported_size = 1 << 60

    done = fetch(uri, *(() if is_cached else ("--to", str(tmp_path / "model"))))

    assert (done.returncode, done.stdout) == (1, "")
    assert f"{uri}: it takes {1 << 40} MiB, and " in done.stderr
    assert not [asked for asked in hub.asked if asked.startswith("GET") and "/resolve/" in asked]


def test_files_that_differ_from_the_checksums_of_the_hub_are_refused(fetch, hub: Hub, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    place = tmp_path / "models/model"
    hub.original_weights = b"other weights of the same size".ljust(len(hub.files["model.safetensors"]))

    done = fetch("hf://org/open", "--to", str(place))

    assert (done.returncode, place.exists()) == (1, False)
    assert "model.safetensors differ from the repository's checksums" in done.stderr

    hub.original_weights = None
    assert fetch("hf://org/open", "--to", str(place)).returncode == 0


@pytest.mark.more
def test_a_folder_whose_files_lost_bytes_is_fetched_again(fetch, hub: Hub, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    place = tmp_path / "models/model"
    fetch("hf://org/open", "--to", str(place))
    (place / "model.safetensors").write_bytes(b"half")

    assert fetch("hf://org/open", "--to", str(place)).returncode == 0

    assert (place / "model.safetensors").read_bytes() == hub.files["model.safetensors"]


@pytest.mark.parametrize(
    "name", tiered(["model.safetensors", "tokenizer.json"], "model.safetensors", more=["tokenizer.json"])
)
def test_a_folder_with_a_changed_file_of_the_same_size_is_fetched_again(  # type: ignore[no-untyped-def]
    fetch, hub: Hub, tmp_path: Path, name: str
) -> None:
    place = tmp_path / "models/model"
    fetch("hf://org/open", "--to", str(place))
    (place / name).write_bytes(bytes(len(hub.files[name])))

    done = fetch("hf://org/open", "--to", str(place))

    assert done.returncode == 0, done.stderr
    assert f"not as fetched: {name}; the model is fetched again" in done.stderr
    assert (place / name).read_bytes() == hub.files[name]


@pytest.mark.more
def test_a_folder_of_another_commit_than_the_uri_names_is_fetched_again(  # type: ignore[no-untyped-def]
    fetch, hub: Hub, tmp_path: Path
) -> None:
    place = tmp_path / "models/model"
    fetch(f"hf://org/open@{COMMIT}", "--to", str(place))
    checksums = place / ".fairlead-checksums"
    assert json.loads(checksums.read_bytes())["commit"] == COMMIT
    checksums.write_text(checksums.read_text().replace(COMMIT, "b" * 40))

    done = fetch(f"hf://org/open@{COMMIT}", "--to", str(place))

    assert "holds another commit" in done.stderr
    assert json.loads(checksums.read_bytes())["commit"] == COMMIT


@pytest.mark.parametrize("name", ["../config.json", "/config.json", "a/../../x.json"])
def test_a_file_outside_of_the_repository_is_refused_and_stays(
    fetch,
    hub: Hub,
    tmp_path: Path,
    name: str,  # type: ignore[no-untyped-def]
) -> None:
    (tmp_path / "config.json").write_text("another's")
    hub.files[name] = b"{}"

    done = fetch("hf://org/open", "--to", str(tmp_path / "model"))

    assert done.returncode == 65
    assert f"{name!r} is not in the repository's folder" in done.stderr
    assert (tmp_path / "config.json").read_text() == "another's"


def test_a_commit_under_the_name_of_another_one_is_refused(fetch, hub: Hub, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    hub.commit = "b" * 40

    done = fetch(f"hf://org/open@{COMMIT}", "--to", str(tmp_path / "model"))

    assert done.returncode == 1
    assert f"has commit {hub.commit} under this name" in done.stderr


@pytest.mark.more
def test_a_killed_download_keeps_its_finished_files(
    hub: Hub, tmp_path: Path, settings: dict[str, str]
) -> None:
    place = tmp_path / "models/model"
    weights = hub.files["model.safetensors"] = bytes(range(256)) * 100_000
    hub.stall = True
    killed = subprocess.Popen([*FETCH, "hf://org/open", "--to", str(place)], env=settings)
    assert hub.stalled.wait(60)
    until(lambda: part_bytes(place.parent) > 0 and list(place.parent.glob("*/tokenizer.json")))
    killed.kill()
    killed.wait()
    hub.stall = False
    hub.resume.set()
    hub.asked.clear()
    (staging,) = (path.parent for path in place.parent.glob("*/tokenizer.json"))
    (staging / "of-another-commit.safetensors").write_bytes(b"old")

    done = subprocess.run([*FETCH, "hf://org/open", "--to", str(place)], env=settings)

    assert done.returncode == 0
    fetched = [line for line in hub.asked if line.startswith("GET") and "/resolve/" in line]
    assert [line.rpartition("/")[2] for line in fetched] == ["model.safetensors"]
    assert (place / "model.safetensors").read_bytes() == weights
    assert not list(place.rglob("*.incomplete")) + list(place.rglob("of-another-commit*"))


@pytest.mark.more
def test_a_fetch_reports_its_progress_over_http(hub: Hub, tmp_path: Path, settings: dict[str, str]) -> None:
    weights = hub.files["model.safetensors"] = bytes(range(256)) * 100_000
    hub.stall = True
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    place = tmp_path / "models/model"
    command = [*FETCH, "hf://org/open", "--to", str(place), f"--progress-port={port}"]
    with subprocess.Popen(command, env=settings) as fetching:
        assert hub.stalled.wait(60)
        total = len(weights) + len(b"{}") * 2

        def report() -> dict[str, int]:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/progress") as answer:
                return dict(json.load(answer))

        half = until(lambda: report()["done"] >= 1_000_000 and report())
        hub.resume.set()
        assert fetching.wait(60) == 0

    assert half["total"] == total
    assert 0 < half["done"] < total


# `fairlead fetch`, with a line of progress whenever a test may look.
FETCH_OFTEN = [
    sys.executable,
    "-c",
    "import sys; from engine_server.model_sources import command, store; store.REPORT_SECONDS = 0.05; "
    "sys.exit(command.main(sys.argv[1:]))",
]


@pytest.mark.more
@pytest.mark.parametrize(
    "uri",
    tiered(["hf://org/open", "hf://org/open/model.gguf"], "hf://org/open", more=["hf://org/open/model.gguf"]),
)
def test_a_fetch_into_the_cache_logs_percent_bytes_and_seconds(
    hub: Hub, tmp_path: Path, settings: dict[str, str], uri: str
) -> None:
    weights = bytes(range(256)) * 100_000
    del hub.files["model.safetensors"]
    hub.files["model.gguf" if uri.endswith("gguf") else "model.safetensors"] = weights
    hub.stall = True
    log = tmp_path / "log"
    with (
        log.open("w") as lines,
        subprocess.Popen([*FETCH_OFTEN, uri], env=settings, stdout=lines, stderr=lines) as fetching,
    ):
        assert hub.stalled.wait(60)
        # Half of the weights have been sent.
        shown = r"fetching .*: \d+ %: (\d+\.\d) MB of 25\.6 MB are downloaded after \d+ s"
        found = until(lambda: re.findall(shown, log.read_text()))
        hub.resume.set()
        fetching.wait(60)

    assert 0 < float(found[-1]) < 25.6


def part_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*.incomplete"))


WRONG_TOKEN = (
    "hf://org/gated",
    {"HF_TOKEN": "hf_wrong"},
    "access to this repository at {url} must be granted to you",
)
UNKNOWN_REVISION = ("hf://org/open@v9", {}, "the repository at {url} has no revision v9")
OFFLINE = (
    "hf://org/open",
    {"HF_HUB_OFFLINE": "1"},
    "HF_HUB_OFFLINE is set, and the model is not complete in the cache",
)
BROKEN = ("hf://org/broken", {}, "{url} cannot be reached (HfHubHTTPError: Server error '500")


def test_token_gives_access_to_a_gated_repository(fetch) -> None:  # type: ignore[no-untyped-def]
    assert fetch("hf://org/gated", HF_TOKEN=TOKEN).returncode == 0


@pytest.mark.parametrize(
    ("uri", "environment", "words"),
    tiered(
        [
            ("hf://org/gated", {}, "access to this repository at {url} must be granted to you"),
            WRONG_TOKEN,
            ("hf://org/absent", {"HF_TOKEN": TOKEN}, "{url} has no such repository, or it is private"),
            UNKNOWN_REVISION,
            BROKEN,
            OFFLINE,
            (
                "hf://org/open",
                {"HF_ENDPOINT": "http://127.0.0.1:1"},
                "http://127.0.0.1:1 cannot be reached (ConnectError",
            ),
            ("hf://org/unsafe", {}, "*.safetensors missing in"),
        ],
        WRONG_TOKEN,
        BROKEN,
        more=[UNKNOWN_REVISION, OFFLINE],
    ),
)
def test_hub_errors_become_messages(
    fetch, hub: Hub, uri: str, environment: dict[str, str], words: str
) -> None:  # type: ignore[no-untyped-def]
    done = fetch(uri, **environment)
    assert (done.returncode, done.stdout) == (1, "")
    assert words.format(url=hub.url) in done.stderr
    assert "Traceback" not in done.stderr
    assert TOKEN not in done.stderr and "hf_wrong" not in done.stderr


@pytest.mark.thorough
def test_interrupted_download_is_not_used(fetch, hub: Hub, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    place = tmp_path / "models/model"
    hub.cuts = 100
    done = fetch("hf://org/cut", "--to", str(place))
    assert (done.returncode, done.stdout) == (1, "")
    assert "Traceback" not in done.stderr
    assert not place.exists()
    hub.cuts = 0
    assert fetch("hf://org/cut", "--to", str(place)).returncode == 0
    assert (place / "model.safetensors").read_bytes() == hub.files["model.safetensors"]
