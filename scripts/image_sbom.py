"""Print the SBOM (CycloneDX) of an image in an OCI archive: its Python packages and those of its distribution.

python -m scripts.image_sbom ARCHIVE NAME VERSION

What an image has besides, such as an interpreter that no package brought, is not listed.
"""

import json
import re
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import venv
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL

SCHEMA = SchemaVersion.V1_6
METADATA = re.compile(r".*/(?:site|dist)-packages/([^/]+\.dist-info/METADATA)")
# Of Debian and its derivatives.
PACKAGES, DISTRIBUTION = "var/lib/dpkg/status", "usr/lib/os-release"
# In a layer: a file that is removed from the layers below, and a folder of which everything is.
REMOVED, EMPTIED = ".wh.", ".wh..wh..opq"


def read_archive(file: Path) -> tuple[str, dict[str, bytes]]:
    """Return an image's digest, and the files that name packages, by their paths."""
    with tarfile.open(file) as archive:

        def blob(name: str) -> Any:
            found = archive.extractfile(name)
            assert found is not None
            return found

        digest: str = json.load(blob("index.json"))["manifests"][0]["digest"]
        manifest = json.load(blob(blob_path(digest)))
        files: dict[str, bytes] = {}
        for layer in manifest["layers"]:
            with tarfile.open(fileobj=blob(blob_path(layer["digest"]))) as content:
                apply_layer(content, files)
    return digest, files


def blob_path(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


def apply_layer(layer: tarfile.TarFile, files: dict[str, bytes]) -> None:
    """Remove from `files` what a layer removes, and add what it has."""
    added = {}
    for member in layer:
        path = PurePosixPath(member.name)
        if path.name == EMPTIED:
            remove(files, path.parent)
        elif path.name.startswith(REMOVED):
            remove(files, path.with_name(path.name.removeprefix(REMOVED)))
        elif str(path) in (PACKAGES, DISTRIBUTION) or METADATA.fullmatch(str(path)):
            content = layer.extractfile(member)
            added[str(path)] = content.read() if content else b""
    files |= added


def remove(files: dict[str, bytes], path: PurePosixPath) -> None:
    for name in [name for name in files if PurePosixPath(name).is_relative_to(path)]:
        del files[name]


def python_packages(files: dict[str, bytes]) -> Any:
    """Return the SBOM of the Python packages, read in an environment that has their metadata alone."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, symlinks=True)
        site = Path(sysconfig.get_path("purelib", vars={"base": folder, "platbase": folder}))
        for name, content in files.items():
            if found := METADATA.fullmatch(name):
                (site / found[1]).parent.mkdir(parents=True, exist_ok=True)
                (site / found[1]).write_bytes(content)
        command = [
            *(sys.executable, "-m", "cyclonedx_py", "environment", "--no-validate", "--output-reproducible"),
            *("--spec-version", SCHEMA.to_version(), "--output-format", "JSON", folder),
        ]
        return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def distribution_packages(files: dict[str, bytes]) -> Iterator[dict[str, Any]]:
    """Yield a component for each installed package of the distribution."""
    settings = dict(line.split("=", 1) for line in files[DISTRIBUTION].decode().splitlines() if "=" in line)
    for paragraph in files[PACKAGES].decode().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in paragraph.splitlines() if re.match(r"[\w-]+: ", line))
        if fields.get("Status") != "install ok installed":
            continue
        name, version, architecture = fields["Package"], fields["Version"], fields["Architecture"]
        purl = PackageURL("deb", settings["ID"], name, version, {"arch": architecture}).to_string()
        yield {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}


def image_sbom(file: Path, name: str, version: str) -> dict[str, Any]:
    """Return the SBOM of an image, which it names by the digest."""
    digest, files = read_archive(file)
    bom: dict[str, Any] = python_packages(files)
    purl = PackageURL("oci", None, name.rpartition("/")[2], digest, {"repository_url": name}).to_string()
    image = {"type": "container", "bom-ref": purl, "name": name, "version": version, "purl": purl}
    bom.setdefault("metadata", {})["component"] = image
    bom["components"] = [*bom.get("components", []), *distribution_packages(files)]
    return bom


def checked(bom: dict[str, Any]) -> str:
    """Return an SBOM as JSON. Raises ValueError if it breaks the schema."""
    text = json.dumps(bom, indent=2)
    if error := JsonStrictValidator(SCHEMA).validate_str(text):
        raise ValueError(f"the SBOM breaks the schema of CycloneDX: {error}")
    return text


if __name__ == "__main__":
    print(checked(image_sbom(Path(sys.argv[1]), sys.argv[2], sys.argv[3])))
