"""The files in examples/, as the schemas, the operator and a real API server see them."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from api_server import ApiServer
from chart_manifests import find
from kubernetes_client import Client
from llm_operator.api.profiles import read_profiles
from llm_operator.api.spec import parse
from llm_operator.crd import crd
from tiers import tiered

from engine_server.router.callers.keys import decode_keys

Manifest = dict[str, Any]
Render = Callable[..., list[Manifest]]

EXAMPLES = Path(__file__).parents[2] / "examples"
MANIFESTS = sorted(EXAMPLES.glob("*.yaml"))
VALUES = sorted(EXAMPLES.glob("values/*.yaml"))
UNTRIED = "never been run on a GPU by us"


def name_of(file: Path) -> str:
    return str(file.relative_to(EXAMPLES))


def documents(file: Path) -> list[Manifest]:
    return list(yaml.safe_load_all(file.read_text()))


def test_there_are_examples_of_each_kind_and_the_readme_lists_all() -> None:
    listed = re.findall(r"\]\(([\w/-]+\.yaml)\)", (EXAMPLES / "README.md").read_text())
    assert sorted(listed) == sorted(map(name_of, MANIFESTS + VALUES))
    kinds = {document["kind"] for file in MANIFESTS for document in documents(file)}
    assert kinds >= {
        "LLMDeployment",
        "Secret",
        "PersistentVolumeClaim",
        "HorizontalPodAutoscaler",
        "ScaledObject",
    }


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft202012Validator:
    schema = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize("file", MANIFESTS, ids=name_of)
def test_llmdeployments_are_accepted_by_the_schema_and_by_the_operator(
    validator: jsonschema.Draft202012Validator, file: Path
) -> None:
    for document in documents(file):
        if document["kind"] == "LLMDeployment":
            validator.validate(document)
            parse(document)


@pytest.mark.usefixtures("definition", "foreign_kinds")
def test_kubectl_applies_the_manifests(api_server: ApiServer) -> None:
    listed = [document for file in MANIFESTS for document in documents(file)]
    for namespace in {document["metadata"].get("namespace", "default") for document in listed}:
        api_server.client.create_namespace(namespace)

    flags = ("--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict")
    done = api_server.kubectl("apply", *flags, *(f"--filename={file}" for file in MANIFESTS))

    assert done.returncode == 0, done.stderr
    assert done.stdout.count("(server dry run)") == len(listed)
    assert "Warning" not in done.stderr


@pytest.mark.usefixtures("foreign_kinds")
@pytest.mark.parametrize("file", tiered(VALUES, EXAMPLES / "values/keys.yaml", more=VALUES, ids=name_of))
def test_an_api_server_accepts_the_chart_with_the_values(
    api_server: ApiServer, render: Render, file: Path
) -> None:
    api_server.client.create_namespace("fairlead-system")
    client = Client(api_server.kubeconfig)

    client.apply(*render(tests=True, **yaml.safe_load(file.read_text())), dryRun="All")

    assert client.warnings == []


def asks_for_gpus(document: Manifest) -> bool:
    resources = document.get("spec", {}).get("resources", {})
    return bool(resources.get("gpu")) or "profile" in document.get("spec", {})


@pytest.mark.parametrize("file", MANIFESTS + VALUES, ids=name_of)
def test_those_for_gpus_say_that_no_gpu_has_run_them(file: Path) -> None:
    text = file.read_text()
    is_for_gpus = any(map(asks_for_gpus, documents(file))) or "gpu:" in text
    assert (UNTRIED in text) is is_for_gpus


def test_the_operator_reads_the_profiles_and_one_is_chosen(render: Render, tmp_path: Path) -> None:
    values = yaml.safe_load((EXAMPLES / "values/profiles.yaml").read_text())
    rendered = find(render(**values), "ConfigMap", "fairlead-operator-files")
    file = tmp_path / "profiles.yaml"
    file.write_text(rendered["data"]["profiles.yaml"])

    profiles = read_profiles(file)

    assert set(profiles) == {"gpu-l4", "gpu-a100", "gpu-h100"}
    (deployment,) = documents(EXAMPLES / "profile.yaml")
    assert deployment["spec"]["profile"] in profiles


def test_the_router_reads_the_keys_of_the_secret_that_the_values_name() -> None:
    (secret,) = documents(EXAMPLES / "keys.yaml")
    values = yaml.safe_load((EXAMPLES / "values/keys.yaml").read_text())
    assert values["router"]["keysSecret"]["name"] == secret["metadata"]["name"]

    keys = decode_keys(secret["stringData"]["keys.yaml"].encode())

    assert [key.name for key in keys] == ["team-a", "batch"]
