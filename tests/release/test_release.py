"""`make release` and `make publish`: what they refuse, with recorders in place of the programs that they call."""

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
VERSION = "9.9.9"
REGISTRY = "registry.example/fairlead"
DIGEST = f"sha256:{'a' * 64}"


def run(script: Path, **settings: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([script], env=os.environ | settings, capture_output=True, text=True)


def add_program(folder: Path, name: str, script: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


class Commit:
    """A repository of one commit with the script, in which Python freezes nothing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.programs = folder.parent / "bin"
        (folder / "scripts").mkdir(parents=True)
        shutil.copy(ROOT / "scripts/release", folder / "scripts/release")
        (folder / "CHANGELOG.md").write_text(f"# Changes\n\n## {VERSION}\n\nAll of it.\n\n## 9.9.8\n")
        add_program(self.programs, "python", "exit 0")
        add_program(self.programs, "hatchling", "echo hatchling; exit 1")
        self.git("init", "--quiet")
        self.git("add", ".")
        self.git("commit", "--quiet", "--message", "one")

    def git(self, *arguments: str) -> None:
        identity = ("-c", "user.name=a", "-c", "user.email=a@example.com")
        subprocess.run(["git", *identity, *arguments], cwd=self.folder, check=True)

    def release(self, version: str = VERSION) -> subprocess.CompletedProcess[str]:
        return run(
            self.folder / "scripts/release",
            VERSION=version,
            REGISTRY="localhost",
            TORCH_INDEX="",
            BIN=str(self.programs),
        )


@pytest.fixture
def commit(tmp_path: Path) -> Commit:
    return Commit(tmp_path / "checkout")


def test_release_is_built_from_a_commit_without_changes(commit: Commit) -> None:
    (commit.folder / "new").touch()

    done = commit.release()

    assert done.returncode == 1
    assert "make release: commit or remove what git status lists" in done.stderr
    assert "hatchling" not in done.stdout


def test_release_of_a_commit_with_the_tag_of_another_version_is_refused(commit: Commit) -> None:
    commit.git("tag", "v9.9.8")

    assert f"make release: {VERSION} is tagged as v9.9.8" in commit.release().stderr


def test_release_of_a_version_without_notes_is_refused(commit: Commit) -> None:
    assert 'CHANGELOG.md has no section "## 9.9"' in commit.release("9.9").stderr


def test_release_that_freezes_its_exchanges_asks_for_their_commit(commit: Commit) -> None:
    add_program(commit.programs, "python", f"touch {commit.folder}/frozen")

    done = commit.release()

    assert f"make release: tests/compat/{VERSION} is frozen now: commit it" in done.stderr
    assert "hatchling" not in done.stdout


def test_release_has_the_notes_of_its_version_alone(commit: Commit) -> None:
    commit.git("tag", f"v{VERSION}")

    commit.release()

    assert (commit.folder / "build/release/NOTES.md").read_text() == "All of it.\n"


class Built:
    """What `make release` has built, as far as it is published, and a registry that has what is pushed to it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.programs = folder.parent / "bin"
        self.calls_file = folder.parent / "calls"
        release = folder / "build/release"
        (release / "images").mkdir(parents=True)
        (folder / "scripts").mkdir()
        shutil.copy(ROOT / "scripts/publish", folder / "scripts/publish")
        files = {
            f"images/fairlead-{VERSION}.tar": "image",
            "images/digests.txt": f"{REGISTRY}/fairlead@{DIGEST}\n",
            f"fairlead-{VERSION}.tgz": "chart",
        }
        sums = ""
        for name, content in files.items():
            (release / name).write_text(content)
            sums += f"{hashlib.sha256(content.encode()).hexdigest()}  {name}\n"
        (release / "SHA256SUMS").write_text(sums)
        record = f'echo "$(basename "$0") $*" >>{self.calls_file}\n'
        add_program(self.programs, "skopeo", f"{record}[ $1 != inspect ] || echo {DIGEST}")
        pulled = f"cp {release}/fairlead-{VERSION}.tgz $6"
        add_program(self.programs, "helm", f"{record}[ $1 != pull ] || {pulled}")

    def publish(self, registry: str = REGISTRY, **settings: str) -> subprocess.CompletedProcess[str]:
        path = f"{self.programs}:{os.environ['PATH']}"
        script = self.folder / "scripts/publish"
        return run(script, PATH=path, VERSION=VERSION, REGISTRY=registry, **settings)

    @property
    def calls(self) -> list[str]:
        """The program, its command and its last words that are not options, for each call."""
        lines = self.calls_file.read_text().splitlines() if self.calls_file.exists() else []
        return [" ".join(word for word in line.split() if not word.startswith(("-", "/"))) for line in lines]


@pytest.fixture
def built(tmp_path: Path) -> Built:
    return Built(tmp_path / "checkout")


def test_images_and_chart_are_pushed_and_compared(built: Built) -> None:
    done = built.publish()

    assert done.returncode == 0, done.stderr
    image = f"docker://{REGISTRY}/fairlead:{VERSION}"
    assert built.calls == [
        f"skopeo copy oci-archive:images/fairlead-{VERSION}.tar {image}",
        f"skopeo inspect {{{{.Digest}}}} {image}",
        f"helm push fairlead-{VERSION}.tgz oci://{REGISTRY}/charts",
        f"helm pull oci://{REGISTRY}/charts/fairlead {VERSION}",
    ]


def test_credentials_are_sent_where_there_is_a_user(built: Built) -> None:
    built.publish(REGISTRY_USER="me", REGISTRY_PASSWORD="secret")

    assert built.calls[0] == "skopeo login me registry.example"
    assert "secret" not in built.calls_file.read_text()


def test_registry_on_a_loopback_address_is_spoken_to_without_tls(built: Built) -> None:
    registry = "127.0.0.1:5000"
    digests = built.folder / "build/release/images/digests.txt"
    digests.write_text(f"{registry}/fairlead@{DIGEST}\n")
    sums = built.folder / "build/release/SHA256SUMS"
    sums.write_text("".join(line for line in sums.read_text().splitlines(True) if "digests" not in line))

    assert built.publish(registry).returncode == 0
    skopeo, _, push, pull = built.calls_file.read_text().splitlines()
    assert "--dest-tls-verify=false" in skopeo
    assert "--plain-http" in push
    assert "--plain-http" in pull


def test_images_that_were_named_for_another_registry_are_not_pushed(built: Built) -> None:
    done = built.publish("registry.example/other")

    assert done.returncode == 1
    assert "was not built for registry.example/other" in done.stderr
    assert built.calls == []


def test_an_image_that_arrives_with_another_digest_fails(built: Built) -> None:
    add_program(built.programs, "skopeo", f"[ $1 != inspect ] || echo sha256:{'b' * 64}")

    done = built.publish()

    assert done.returncode == 1
    assert f"{REGISTRY} has sha256:bbb" in done.stderr


def test_what_changed_since_it_was_built_is_not_pushed(built: Built) -> None:
    (built.folder / f"build/release/fairlead-{VERSION}.tgz").write_text("another")

    done = built.publish()

    assert "build/release is not what make release has built" in done.stderr
    assert built.calls == []
