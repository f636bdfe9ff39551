"""Download into a folder what tests of the chart, the operator and the router need besides Python: `make test-tools`.

helm, envtest's etcd, kube-apiserver and kubectl, and the CRDs of other projects, each of a fixed version from the
place where its project publishes it. Archives are compared with the checksums that are published there.
"""

import hashlib
import io
import platform
import re
import shutil
import sys
import tarfile
import urllib.request
from pathlib import Path

HELM = "https://get.helm.sh/helm-v4.3.0-linux-{machine}.tar.gz"
ENVTEST = (
    "https://github.com/kubernetes-sigs/controller-tools/releases/download/"
    "envtest-v1.34.1/envtest-v1.34.1-linux-{machine}.tar.gz"
)
# The SHA-512 of each of envtest's archives.
ENVTEST_INDEX = (
    "https://raw.githubusercontent.com/kubernetes-sigs/controller-tools/HEAD/envtest-releases.yaml"
)
PROMETHEUS = (
    "https://raw.githubusercontent.com/prometheus-operator/prometheus-operator/v0.93.0/"
    "example/prometheus-operator-crd/monitoring.coreos.com_{kind}.yaml"
)
CRDS = {
    **{kind: PROMETHEUS.format(kind=kind) for kind in ("podmonitors", "servicemonitors", "prometheusrules")},
    "httproutes": "https://raw.githubusercontent.com/kubernetes-sigs/gateway-api/v1.4.0/"
    "config/crd/standard/gateway.networking.k8s.io_httproutes.yaml",
    "scaledobjects": "https://raw.githubusercontent.com/kedacore/keda/v2.18.0/"
    "config/crd/bases/keda.sh_scaledobjects.yaml",
}
MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
PROGRAMS = {"helm", "etcd", "kube-apiserver", "kubectl"}


class DownloadError(Exception):
    """A file that can't be had, or is not the one that its project published."""


def main(folder: Path) -> None:
    """Fill `folder` with the programs, and `folder`/crds, unless it has these versions. Raises DownloadError."""
    machine = MACHINES.get(platform.machine())
    if machine is None:
        raise DownloadError(f"there are no binaries for {platform.machine()}: only for {', '.join(MACHINES)}")
    helm, envtest = HELM.format(machine=machine), ENVTEST.format(machine=machine)
    versions = "\n".join((helm, envtest, *CRDS.values()))
    stamp = folder / "versions"
    if stamp.exists() and stamp.read_text() == versions:
        return
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    (partial / "crds").mkdir(parents=True)
    unpack(checked(helm, "sha256", fetch(f"{helm}.sha256sum").decode()), partial)
    unpack(checked(envtest, "sha512", envtest_checksum(envtest)), partial)
    if missing := PROGRAMS - {path.name for path in partial.iterdir()}:
        raise DownloadError(f"the archives lack {', '.join(sorted(missing))}")
    for kind, url in CRDS.items():
        (partial / "crds" / f"{kind}.yaml").write_bytes(fetch(url))
    (partial / "versions").write_text(versions)
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)


def fetch(url: str) -> bytes:
    print(f"downloading {url}", file=sys.stderr)
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return bytes(answer.read())
    except OSError as error:
        raise DownloadError(f"{url}: {error}") from error


def checked(url: str, algorithm: str, published: str) -> bytes:
    """Return an archive whose checksum begins the published text. Raises DownloadError."""
    content = fetch(url)
    if published.split()[:1] != [hashlib.new(algorithm, content).hexdigest()]:
        raise DownloadError(f"{url}: its {algorithm} is not the published one")
    return content


def envtest_checksum(url: str) -> str:
    """Return the SHA-512 in envtest's index of releases. Raises DownloadError."""
    name = re.escape(url.rpartition("/")[2])
    found = re.search(rf"^ +{name}:\n +hash: ([0-9a-f]{{128}})$", fetch(ENVTEST_INDEX).decode(), re.MULTILINE)
    if found is None:
        raise DownloadError(f"{ENVTEST_INDEX} lacks {url}")
    return found[1]


def unpack(archive: bytes, folder: Path) -> None:
    """Write the programs of an archive into a folder, without the archive's own folders."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        for member in files:
            name = Path(member.name).name
            content = files.extractfile(member) if name in PROGRAMS else None
            if content is not None:
                (folder / name).write_bytes(content.read())
                (folder / name).chmod(0o755)


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
    except DownloadError as error:
        sys.exit(f"make test-tools: {error}")
