"""The download of the tests' tools, from a server of this machine in the place of the projects'."""

import hashlib
import io
import tarfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
import tools

ENVTEST = "envtest-v1.34.1-linux-amd64.tar.gz"


def archive(**files: str) -> bytes:
    """Return an archive with files by their names, in a folder."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(f"folder/{name.replace('_', '-')}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content.encode()))
    return buffer.getvalue()


class Site:
    """A folder that is served in place of the projects' sites."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        helm, envtest = archive(helm="helm 4", README="x"), archive(etcd="e", kube_apiserver="k", kubectl="c")
        self.put("helm", helm)
        self.put("helm.sha256sum", f"{hashlib.sha256(helm).hexdigest()}  helm.tar.gz\n".encode())
        self.put(ENVTEST, envtest)
        checksum = hashlib.sha512(envtest).hexdigest()
        self.put("index", f"releases:\n  v1.34.1:\n    {ENVTEST}:\n      hash: {checksum}\n".encode())
        self.put("podmonitors", b"kind: CustomResourceDefinition\n")

    def put(self, name: str, content: bytes) -> None:
        (self.folder / name).write_bytes(content)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    folder = tmp_path / "site"
    folder.mkdir()
    handler = partial(SimpleHTTPRequestHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setattr(tools, "HELM", f"{url}/helm")
        monkeypatch.setattr(tools, "ENVTEST", f"{url}/{ENVTEST}")
        monkeypatch.setattr(tools, "ENVTEST_INDEX", f"{url}/index")
        monkeypatch.setattr(tools, "CRDS", {"podmonitors": f"{url}/podmonitors"})
        monkeypatch.setattr(tools.platform, "machine", lambda: "x86_64")
        yield Site(folder)
        server.shutdown()


def test_programs_and_definitions_lie_where_the_tests_look_for_them(site: Site, tmp_path: Path) -> None:
    folder = tmp_path / "tools"

    tools.main(folder)

    assert {path.name for path in folder.iterdir()} == {*tools.PROGRAMS, "crds", "versions"}
    assert (folder / "helm").read_text() == "helm 4"
    assert all((folder / name).stat().st_mode & 0o111 for name in tools.PROGRAMS)
    assert (folder / "crds/podmonitors.yaml").read_text() == "kind: CustomResourceDefinition\n"


def test_nothing_is_downloaded_again_before_a_version_changes(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "tools"
    tools.main(folder)
    (site.folder / "podmonitors").unlink()

    tools.main(folder)
    assert (folder / "crds/podmonitors.yaml").exists()

    monkeypatch.setattr(tools, "CRDS", {})
    tools.main(folder)
    assert not (folder / "crds/podmonitors.yaml").exists()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("helm", archive(helm="evil"), "its sha256 is not the published one"),
        (ENVTEST, archive(etcd="evil"), "its sha512 is not the published one"),
        ("index", b"releases: {}\n", f"lacks http.*{ENVTEST}"),
    ],
    ids=["helm", "envtest", "index"],
)
def test_other_content_than_the_published_leaves_nothing_behind(
    site: Site, tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    site.put(name, content)

    with pytest.raises(tools.DownloadError, match=message):
        tools.main(tmp_path / "tools")

    assert not (tmp_path / "tools").exists()


def test_a_failed_download_keeps_what_was_there(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "tools"
    tools.main(folder)
    monkeypatch.setattr(tools, "CRDS", {"missing": tools.CRDS["podmonitors"] + "-missing"})

    with pytest.raises(tools.DownloadError, match=r"podmonitors-missing: .*404"):
        tools.main(folder)

    assert (folder / "crds/podmonitors.yaml").exists()
