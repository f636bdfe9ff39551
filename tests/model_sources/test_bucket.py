"""`s3://` against moto's server, in processes of its own and with real requests."""

import logging
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from hashlib import sha256
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from obstore.store import S3Store
from tiers import tiered
from waiting import until

from engine_server.contract.cluster.sources.bucket import Bucket
from engine_server.model_sources import ModelSourceError, bucket, record, store
from engine_server.model_sources.progress import Progress

MOTO = Path(sys.prefix) / "moto"
KEYS = {
    "AWS_ACCESS_KEY_ID": "AKIAEXAMPLE",
    "AWS_SECRET_ACCESS_KEY": "very-secret-key",
    "AWS_REGION": "us-east-1",
}
FETCH = [sys.executable, "-m", "engine_server.cli", "fetch"]
WEIGHTS = bytes(range(256)) * (40 << 12)
FILES = {
    "org/model/config.json": b"{}",
    "org/model/tokenizer.json": b"{}",
    "org/model/nested/model.safetensors": b"nested",
    "org/model/model.safetensors": WEIGHTS,
    "org/model/pytorch_model.bin": b"unsafe",
    "org/model-2/config.json": b"{}",
    "elsewhere/config.json": b"{}",
}


@pytest.fixture(scope="module")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run moto's server with a bucket of FILES; return its address."""
    if not MOTO.is_dir():
        pytest.fail(f"there is no moto in {MOTO}: make .venv/.moto")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    log = tmp_path_factory.mktemp("moto") / "log"
    command = [sys.executable, "-m", "moto.server", "--host=127.0.0.1", f"--port={port}"]
    with log.open("wb") as output:
        server = subprocess.Popen(
            command, env={**os.environ, "PYTHONPATH": str(MOTO)}, stdout=output, stderr=output
        )
    url = f"http://127.0.0.1:{port}"
    try:
        until(lambda: has_bucket(f"{url}/models"))
        for key, content in FILES.items():
            upload(url, key, content)
        yield url
    finally:
        server.kill()
        server.wait()


def has_bucket(url: str) -> bool:
    """Create the bucket; return False if the server does not listen yet."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method="PUT")) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def upload(url: str, key: str, content: bytes) -> None:
    store = S3Store(
        "models",
        endpoint=url,
        access_key_id=KEYS["AWS_ACCESS_KEY_ID"],
        secret_access_key=KEYS["AWS_SECRET_ACCESS_KEY"],
        client_options={"allow_http": True},
    )
    store.put(key, content)


class Proxy(ThreadingHTTPServer):
    """A proxy in front of moto that may refuse requests, or hold the first part of the weights back."""

    def __init__(self, target: str) -> None:
        super().__init__(("127.0.0.1", 0), Forwarder)
        self.target = target.removeprefix("http://")
        # The status and S3 code of every answer, if any.
        self.refusal: tuple[int, str] | None = None
        # The number of ranges of the weights to answer before the proxy holds requests back; None: all.
        self.ranges_until_stall: int | None = None
        self.stalled = threading.Event()
        self.resume = threading.Event()
        self.ranges: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Forwarder(BaseHTTPRequestHandler):
    server: Proxy

    def do_GET(self) -> None:
        if self.server.refusal:
            status, code = self.server.refusal
            body = f"<Error><Code>{code}</Code><AWSAccessKeyId>AKIAEXAMPLE</AWSAccessKeyId></Error>".encode()
            self.answer(status, {}, body)
            return
        if "model.safetensors" in self.path and "nested" not in self.path:
            self.server.ranges.append(self.headers["range"])
            if len(self.server.ranges) - 1 == self.server.ranges_until_stall:
                self.server.stalled.set()
                self.server.resume.wait()
        connection = HTTPConnection(self.server.target, timeout=30)
        connection.request("GET", self.path, headers=dict(self.headers))
        response = connection.getresponse()
        self.answer(response.status, dict(response.getheaders()), response.read())

    def answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            if name.lower() not in ("content-length", "transfer-encoding", "connection", "date", "server"):
                self.send_header(name, value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def proxy(moto: str) -> Iterator[Proxy]:
    with Proxy(moto) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.resume.set()
        server.shutdown()


@pytest.fixture
def settings(tmp_path: Path) -> Callable[..., dict[str, str]]:
    """Return a function that makes the environment of a process that fetches from an address."""

    def settings(url: str, **more: str) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        folder = {"FAIRLEAD_CACHE": str(tmp_path / "cache")}
        return {**kept, **KEYS, **folder, "AWS_ENDPOINT_URL": url, **more}

    return settings


def fetch(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*FETCH, *arguments], capture_output=True, text=True, env=environment)


def test_downloads_the_used_files_below_the_prefix(
    moto: str, settings: Callable[..., dict[str, str]], tmp_path: Path
) -> None:
    place = tmp_path / "models/model"

    done = fetch(settings(moto), "s3://models/org/model", "--to", str(place))

    assert done.returncode == 0, done.stderr
    assert (place / "model.safetensors").read_bytes() == WEIGHTS
    found = {str(path.relative_to(place)) for path in place.rglob("*") if path.is_file()}
    assert found == {
        ".fairlead-checksums", ".fairlead-model", ".fairlead-sizes", "config.json", "tokenizer.json",
        "model.safetensors", "nested/model.safetensors",
    }  # fmt: skip
    assert "AKIAEXAMPLE" not in done.stderr and "very-secret-key" not in done.stderr


def test_a_newline_at_the_end_of_a_secrets_values_is_left_out(
    moto: str, settings: Callable[..., dict[str, str]]
) -> None:
    environment = settings(moto)
    stored = {name: f"{environment[name]}\n" for name in (*KEYS, "AWS_ENDPOINT_URL")}

    done = fetch(environment | stored, "s3://models/org/model")

    assert done.returncode == 0, done.stderr


@pytest.mark.more
def test_files_are_hashed_while_they_are_downloaded(
    moto: str, settings: Callable[..., dict[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in settings(moto).items():
        monkeypatch.setenv(name, value)
    (place := tmp_path / "model").mkdir()

    known = bucket.fill(Bucket("models", "org/model"), place, Progress())

    used = ("config.json", "tokenizer.json", "model.safetensors", "nested/model.safetensors")
    assert known.sha256 == {name: sha256(FILES[f"org/model/{name}"]).hexdigest() for name in used}


@pytest.mark.more
def test_a_fetch_logs_percent_bytes_and_seconds(
    moto: str,
    settings: Callable[..., dict[str, str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for name, value in settings(moto).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(store, "REPORT_SECONDS", 0.01)
    shown = re.compile(r"fetching .*: \d+ %: \d+\.\d MB of 41\.9 MB are downloaded after \d+ s")
    seen = threading.Event()

    class Watch(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if shown.fullmatch(record.getMessage()):
                seen.set()

    caplog.set_level(logging.INFO, store.log.name)
    monkeypatch.setattr(store.log, "handlers", [Watch()])
    rename = Path.rename

    def rename_after_a_line(path: Path, target: Path) -> Path:
        assert seen.wait(60)
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", rename_after_a_line)
    (place := tmp_path / "model").mkdir()
    progress = Progress()
    progress.follow(place)

    bucket.fill(Bucket("models", "org/model"), place, progress)

    assert seen.is_set()


class Listing:
    """A bucket with objects of 1 GiB, which can only be listed."""

    def __init__(self, number: int) -> None:
        self.number = number

    def list(self, prefix: str) -> Iterator[list[dict[str, object]]]:
        for index in range(self.number):
            yield [{"path": f"{prefix}/{index}.safetensors", "size": 1 << 30, "e_tag": "v"}]


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (bucket.MOST_OBJECTS + 1, f"more than {bucket.MOST_OBJECTS} model files"),
        (3, "it takes 3072 MiB, and 2048 MiB are free"),
    ],
)
def test_bucket_with_too_many_or_too_large_files_is_refused_before_they_are_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, reason: str
) -> None:
    full = shutil.disk_usage("/")._replace(free=2 << 30)
    monkeypatch.setattr("engine_server.model_sources.store.shutil.disk_usage", lambda folder: full)
    monkeypatch.setattr(bucket, "_open", lambda source: Listing(number))
    monkeypatch.setattr(
        bucket, "_fetch", lambda opened, source, wanted, into: pytest.fail("a file is fetched")
    )

    with pytest.raises(ModelSourceError, match=reason):
        bucket.fill(Bucket("models", "org/model"), tmp_path, Progress())


@pytest.mark.more
def test_the_cache_keeps_a_model_for_each_endpoint(
    moto: str, proxy: Proxy, settings: Callable[..., dict[str, str]]
) -> None:
    first = fetch(settings(moto), "s3://models/org/model")
    proxy.refusal = (403, "AccessDenied")

    again = fetch(settings(moto), "s3://models/org/model/")
    elsewhere = fetch(settings(proxy.url), "s3://models/org/model")

    assert first.stdout and again.stdout == first.stdout
    assert elsewhere.returncode == 1


def kill_after_the_first_part(proxy: Proxy, environment: dict[str, str], place: Path) -> None:
    """Start a download to `place`, and kill it when the proxy has answered one range."""
    proxy.ranges_until_stall = 1
    killed = subprocess.Popen([*FETCH, "s3://models/org/model", "--to", str(place)], env=environment)
    assert proxy.stalled.wait(60)
    killed.kill()
    killed.wait()


@pytest.mark.more
def test_a_killed_download_is_resumed_at_its_last_part(
    proxy: Proxy, settings: Callable[..., dict[str, str]], tmp_path: Path
) -> None:
    place = tmp_path / "models/model"
    kill_after_the_first_part(proxy, settings(proxy.url), place)
    assert not place.exists()
    proxy.ranges_until_stall = None
    proxy.resume.set()
    proxy.ranges.clear()

    done = fetch(settings(proxy.url), "s3://models/org/model", "--to", str(place))

    assert done.returncode == 0, done.stderr
    assert proxy.ranges[0].startswith(f"bytes={16 << 20}-")
    assert (place / "model.safetensors").read_bytes() == WEIGHTS
    assert record.differences(place, record.every_file) == []


@pytest.mark.thorough
def test_a_resumed_download_takes_no_part_of_a_replaced_object(
    proxy: Proxy, moto: str, settings: Callable[..., dict[str, str]], tmp_path: Path
) -> None:
    place = tmp_path / "models/model"
    kill_after_the_first_part(proxy, settings(proxy.url), place)
    proxy.resume.set()
    replaced = WEIGHTS[::-1]
    try:
        upload(moto, "org/model/model.safetensors", replaced)

        done = fetch(settings(moto), "s3://models/org/model", "--to", str(place))

        assert done.returncode == 0, done.stderr
        assert (place / "model.safetensors").read_bytes() == replaced
        assert not list(place.rglob("*.part"))
    finally:
        upload(moto, "org/model/model.safetensors", WEIGHTS)


ABSENT = ("s3://absent/model", "the bucket absent at {url}: NoSuchBucket: there is no such bucket")
DENIED = (403, "AccessDenied", "s3:ListBucket on the bucket and s3:GetObject on the objects are needed")


@pytest.mark.parametrize(
    ("uri", "words"),
    tiered(
        [
            ABSENT,
            ("s3://models/nothing", "the bucket models at {url} has no model files there"),
            ("s3://models/elsewhere", "*.safetensors missing"),
        ],
        ABSENT,
    ),
)
def test_an_error_names_the_bucket_and_the_endpoint(
    moto: str, settings: Callable[..., dict[str, str]], tmp_path: Path, uri: str, words: str
) -> None:
    done = fetch(settings(moto), uri, "--to", str(tmp_path / "model"))

    assert (done.returncode, done.stdout) == (1, "")
    assert words.format(url=moto) in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("status", "code", "words"),
    tiered(
        [
            DENIED,
            (403, "InvalidAccessKeyId", "the endpoint does not know the access key in AWS_ACCESS_KEY_ID"),
            (403, "SignatureDoesNotMatch", "AWS_SECRET_ACCESS_KEY does not belong to AWS_ACCESS_KEY_ID"),
            (400, "ExpiredToken", "AWS_SESSION_TOKEN has expired"),
        ],
        DENIED,
    ),
)
def test_an_error_names_the_missing_right_and_no_key(
    proxy: Proxy, settings: Callable[..., dict[str, str]], tmp_path: Path, status: int, code: str, words: str
) -> None:
    proxy.refusal = (status, code)

    done = fetch(settings(proxy.url), "s3://models/org/model", "--to", str(tmp_path / "model"))

    assert done.returncode == 1
    assert f"{code}: {words}" in done.stderr
    assert "AKIAEXAMPLE" not in done.stderr and "very-secret-key" not in done.stderr


@pytest.mark.thorough
def test_an_endpoint_that_does_not_answer_is_named(
    settings: Callable[..., dict[str, str]], tmp_path: Path
) -> None:
    done = fetch(settings("http://127.0.0.1:1"), "s3://models/org/model", "--to", str(tmp_path / "model"))

    assert done.returncode == 1
    assert "the bucket models at http://127.0.0.1:1" in done.stderr
    assert "AKIAEXAMPLE" not in done.stderr and "Traceback" not in done.stderr
