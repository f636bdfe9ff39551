"""`make image` and `make kind`, with programs on the PATH that record how they are called."""

import shutil
import subprocess
from pathlib import Path

import pytest

from engine_server.contract.base.version import VERSION

ROOT = Path(__file__).parent.parent
NAME = f"localhost/fairlead:{VERSION}"
CPU_BUILD = "TORCH_INDEX=https://download.pytorch.org/whl/cpu"
# What the recipes need besides the programs that they run by name.
COREUTILS = ("bash", "cat", "cut", "dirname", "du", "env", "grep", "make", "mkdir", "rm", "sed")
RECORD = '#!/usr/bin/env bash\necho "$(basename "$0") $*" >>"$CALLS"\n'
# An image is saved with `--output FILE IMAGE` or `push IMAGE docker-archive:FILE:IMAGE`.
SAVE = 'case $1 in save) : >"$3";; push) file=${3#*:}; : >"${file%%:*}";; esac\n'
WITHOUT_DAEMON = "[ $1 != info ] || exit 1\n"


class Checkout:
    """A folder with the files that the recipes read, and a PATH with recorders alone."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.calls_file = folder.parent / "calls"
        self.programs = folder.parent / "bin"
        self.programs.mkdir()
        shutil.copytree(ROOT / "scripts", folder / "scripts")
        for name in ("Makefile", "engine_server/contract/base/version.py"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
        for name in (*COREUTILS, "basename"):
            found = shutil.which(name)
            assert found
            (self.programs / name).symlink_to(found)

    def add(self, name: str, rest: str = "") -> None:
        program = self.programs / name
        program.write_text(RECORD + rest)
        program.chmod(0o755)

    def make(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {"PATH": str(self.programs), "CALLS": str(self.calls_file)}
        return subprocess.run(
            ["make", *arguments], cwd=self.folder, env=environment, capture_output=True, text=True
        )

    def build_oci(self, archive: str) -> subprocess.CompletedProcess[str]:
        """Build the image without an engine into an OCI archive, as `make release` does."""
        environment = {"PATH": str(self.programs), "CALLS": str(self.calls_file)}
        settings = {
            "IMAGE": NAME,
            "TORCH_INDEX": "",
            "OCI": archive,
            "TARGET": "control-plane",
            "REVISION": "abc",
        }
        return subprocess.run(
            [self.folder / "scripts/image"], env=environment | settings, capture_output=True, text=True
        )

    @property
    def calls(self) -> list[str]:
        """The calls so far, but for the questions whether a builder works."""
        lines = self.calls_file.read_text().splitlines() if self.calls_file.exists() else []
        return [line for line in lines if line.partition(" ")[2] != "info"]


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    (tmp_path / "checkout").mkdir()
    return Checkout(tmp_path / "checkout")


@pytest.mark.parametrize("builder", ["docker", "podman"])
def test_image_is_built_with_torchs_cpu_build_and_saved(checkout: Checkout, builder: str) -> None:
    checkout.add(builder, SAVE)

    done = checkout.make("image")

    assert done.returncode == 0, done.stderr
    assert checkout.calls == [
        f"{builder} build --build-arg {CPU_BUILD} --tag {NAME} .",
        f"{builder} save --output build/image.tar {NAME}",
    ]
    for loader in (
        "kind load image-archive",
        "k3d image import",
        "minikube image load",
        "-n k8s.io images import",
    ):
        assert f"{loader} build/image.tar" in done.stdout
    assert f"--set image.repository=localhost/fairlead --set image.tag={VERSION}" in done.stdout


def test_image_is_built_by_buildah_where_docker_has_no_daemon(checkout: Checkout) -> None:
    checkout.add("docker", WITHOUT_DAEMON)
    checkout.add("buildah", SAVE)

    done = checkout.make("image")

    assert done.returncode == 0, done.stderr
    assert checkout.calls == [
        f"buildah build --layers --build-arg {CPU_BUILD} --tag {NAME} .",
        f"buildah push {NAME} docker-archive:build/image.tar:{NAME}",
    ]


def test_oci_archive_of_a_stage_is_saved_with_the_commit_in_its_labels(checkout: Checkout) -> None:
    checkout.add("docker", SAVE)
    checkout.add("buildah", SAVE)

    done = checkout.build_oci("build/release/image.tar")

    assert done.returncode == 0, done.stderr
    options = "--build-arg TORCH_INDEX= --build-arg REVISION=abc --target control-plane"
    assert checkout.calls == [
        f"buildah build --layers {options} --tag {NAME} .",
        f"buildah push {NAME} oci-archive:build/release/image.tar:{NAME}",
    ]


def test_oci_archive_needs_another_builder_than_docker(checkout: Checkout) -> None:
    checkout.add("docker", SAVE)

    done = checkout.build_oci("build/release/image.tar")

    assert done.returncode == 1
    assert "an OCI archive needs podman or buildah" in done.stderr
    assert checkout.calls == []


def test_name_and_torch_of_the_image_can_be_chosen(checkout: Checkout) -> None:
    checkout.add("docker", SAVE)

    done = checkout.make("image", "IMAGE=registry.example:5000/fairlead:next", "TORCH_INDEX=")

    assert done.returncode == 0, done.stderr
    assert (
        checkout.calls[0]
        == "docker build --build-arg TORCH_INDEX= --tag registry.example:5000/fairlead:next ."
    )
    assert "--set image.repository=registry.example:5000/fairlead --set image.tag=next" in done.stdout


def test_without_a_builder_that_works_it_says_what_is_needed(checkout: Checkout) -> None:
    checkout.add("docker", WITHOUT_DAEMON)

    done = checkout.make("image")

    assert done.returncode != 0
    assert "make image: needs docker (with its daemon), podman or buildah" in done.stderr
    assert checkout.calls == []


@pytest.mark.parametrize("existing", [True, False], ids=["existing cluster", "no cluster"])
def test_kind_serves_the_sample_model_and_names_its_cluster_in_each_call(
    checkout: Checkout, existing: bool
) -> None:
    checkout.add("docker", SAVE)
    checkout.add(
        "kind",
        f'[ "$*" != "get clusters" ] || echo "fairlead-other{chr(10) + "fairlead" if existing else ""}"\n',
    )
    for name in ("kubectl", "helm"):
        checkout.add(name)

    done = checkout.make("kind")

    assert done.returncode == 0, done.stderr
    created = [] if existing else ["kind create cluster --name fairlead --wait 2m"]
    assert checkout.calls[2:] == [
        "kind get clusters",
        *created,
        "kind load image-archive build/image.tar --name fairlead",
        "helm upgrade --install fairlead charts/fairlead --kube-context kind-fairlead --namespace fairlead-system "
        f"--create-namespace --set image.repository=localhost/fairlead --set image.tag={VERSION} --wait --timeout 5m",
        "kubectl --context kind-fairlead --namespace fairlead-system rollout restart deployment",
        "kubectl --context kind-fairlead --namespace fairlead-system rollout status deployment --timeout=5m",
        "kubectl --context kind-fairlead apply --filename manifests/samples/smollm2.yaml",
        "kubectl --context kind-fairlead wait --for=condition=Ready --timeout=15m llmd/smollm2",
    ]
    assert "curl http://127.0.0.1:8080/v1/chat/completions" in done.stdout


def test_kind_installs_nothing_where_a_step_fails(checkout: Checkout) -> None:
    checkout.add("docker", SAVE)
    checkout.add("kind", "[ $1 != load ] || exit 1\n")
    for name in ("kubectl", "helm"):
        checkout.add(name)

    done = checkout.make("kind")

    assert done.returncode != 0
    assert not [call for call in checkout.calls if call.startswith(("helm", "kubectl"))]


def test_kind_names_the_program_that_is_missing(checkout: Checkout) -> None:
    checkout.add("docker", SAVE)
    checkout.add("kind")

    done = checkout.make("kind")

    assert done.returncode != 0
    assert "make kind: needs kubectl on PATH" in done.stderr


def test_kind_down_removes_the_cluster(checkout: Checkout) -> None:
    checkout.add("kind")

    assert checkout.make("kind-down").returncode == 0
    assert checkout.calls == ["kind delete cluster --name fairlead"]
