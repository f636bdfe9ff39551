"""The SBOM of an image, from archives of a few files."""

import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any

from scripts.image_sbom import checked, image_sbom

OS_RELEASE = "usr/lib/os-release"
STATUS = "var/lib/dpkg/status"
BASE = {OS_RELEASE: "NAME=Debian\nID=debian\n", STATUS: "", "bin/sh": "a program"}
SITE = "opt/fairlead/lib/python3.12/site-packages"


def metadata(name: str, version: str) -> dict[str, str]:
    text = f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}\n"
    return {f"{SITE}/{name}-{version}.dist-info/METADATA": text}


def paragraph(name: str, version: str, status: str = "install ok installed") -> str:
    description = "Description: a line\n and another: one\n"
    return f"Package: {name}\nStatus: {status}\nArchitecture: amd64\nVersion: {version}\n{description}\n"


def tar(files: dict[str, bytes], mode: str = "w") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as archive:  # type: ignore[call-overload]
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


def write_image(file: Path, *layers: dict[str, str]) -> str:
    """Write an OCI archive with these layers of files, and return the image's digest."""
    blobs: dict[str, bytes] = {}

    def add(content: bytes) -> dict[str, Any]:
        digest = hashlib.sha256(content).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = content
        return {"digest": f"sha256:{digest}", "size": len(content)}

    packed = [
        add(tar({name: text.encode() for name, text in layer.items()}, "w:gz")) for layer in (BASE, *layers)
    ]
    manifest = add(json.dumps({"schemaVersion": 2, "layers": packed}).encode())
    file.write_bytes(tar({"index.json": json.dumps({"manifests": [manifest]}).encode(), **blobs}))
    return str(manifest["digest"])


def packages(file: Path) -> list[str]:
    bom = image_sbom(file, "registry.example/fairlead", "9.9.9")
    return sorted(component["purl"] for component in bom["components"])


def test_packages_of_python_and_of_debian_are_listed(tmp_path: Path) -> None:
    status = paragraph("libc6", "2.36-9+deb12u14") + paragraph("gone", "1", "deinstall ok config-files")
    write_image(tmp_path / "image.tar", {STATUS: status}, metadata("torch", "2.13.0"))

    assert packages(tmp_path / "image.tar") == [
        "pkg:deb/debian/libc6@2.36-9%2Bdeb12u14?arch=amd64",
        "pkg:pypi/torch@2.13.0",
    ]


def test_what_a_later_layer_removes_is_not_listed(tmp_path: Path) -> None:
    both = metadata("torch", "2.13.0") | metadata("triton", "3.7.1")
    folder = f"{SITE}/.wh.torch-2.13.0.dist-info"
    write_image(tmp_path / "image.tar", both, {folder: ""})

    assert packages(tmp_path / "image.tar") == ["pkg:pypi/triton@3.7.1"]


def test_a_folder_that_a_later_layer_replaces_has_what_that_has(tmp_path: Path) -> None:
    write_image(
        tmp_path / "image.tar",
        metadata("torch", "2.13.0"),
        metadata("torch", "2.14.0") | {f"{SITE}/.wh..wh..opq": ""},
    )

    assert packages(tmp_path / "image.tar") == ["pkg:pypi/torch@2.14.0"]


def test_sbom_keeps_the_schema_and_names_the_image_by_its_digest(tmp_path: Path) -> None:
    packages = {STATUS: paragraph("libc6", "2.36")} | metadata("torch", "2.13.0")
    digest = write_image(tmp_path / "image.tar", packages)

    bom = json.loads(checked(image_sbom(tmp_path / "image.tar", "registry.example/fairlead", "9.9.9")))

    image = bom["metadata"]["component"]
    assert (image["type"], image["name"], image["version"]) == (
        "container",
        "registry.example/fairlead",
        "9.9.9",
    )
    assert digest.partition(":")[2] in image["purl"]
