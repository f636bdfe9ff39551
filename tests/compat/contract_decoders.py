"""Decoders of recorded bytes that use `engine_server.contract` alone: the program in a release's `contract.zip`.

It reads cases from stdin as [[DECODER, CONTENT], ...] and prints their results. Two contents of one case, as two
releases write it, have one result: what may differ is left out.
"""

import json
import sys
from collections import defaultdict
from typing import Any

import msgspec

import engine_server.contract
from engine_server.contract.cluster import api, labels
from engine_server.contract.cluster.adapters import AdapterStates, DeploymentAdapter, WantedAdapters
from engine_server.contract.cluster.demand import DemandReport
from engine_server.contract.cluster.endpoints_file import EndpointsFile
from engine_server.contract.cluster.engine_keys import derive_key, hash_line, parse_key_line, parse_root_keys
from engine_server.contract.cluster.memory_shortage import find_shortage
from engine_server.contract.wire import headers
from engine_server.contract.wire.continuation import REPORT_PREFIX, ROUTER_FIELD, RouterFields, TokenReport
from engine_server.contract.wire.engine_report import ReportedUsage
from engine_server.contract.wire.errors import AnthropicErrorBody, ErrorBody

# Annotations whose values a release computes as it sees fit.
COMPUTED = ("SPEC_HASH", "POD_TEMPLATE", "APPLIED", "RECORD_HASH", "FETCH_SPEC")


def texts_in(module: Any) -> dict[str, str]:
    """Return the texts among the constants of a module, by name."""
    return {name: value for name, value in vars(module).items() if name.isupper() and isinstance(value, str)}


def head(content: bytes) -> dict[str, Any]:
    """Return the values of our headers in a message, by the name of the constant; of the load only that it is there."""
    lines = content.partition(b"\r\n\r\n")[0].decode().split("\r\n")[1:]
    values = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    found = {name: values.get(header.lower()) for name, header in texts_in(headers).items()}
    return found | {"LOAD": found["LOAD"] is not None}


def body(content: bytes) -> bytes:
    return content.partition(b"\r\n\r\n")[2]


def request(content: bytes) -> dict[str, Any]:
    fields = msgspec.json.decode(body(content))
    resume = None
    if ROUTER_FIELD in fields:
        resume = msgspec.to_builtins(msgspec.convert(fields[ROUTER_FIELD], RouterFields))
    return {"head": head(content), "resume": resume}


def answer(content: bytes) -> dict[str, Any]:
    """Return our headers, the reports of tokens, and the code of the error, if it is one."""
    found = head(content)
    usage = ReportedUsage.parse((found["USAGE"] or "").encode())
    lines = [line for line in body(content).splitlines() if line.startswith(REPORT_PREFIX)]
    reports = [TokenReport.decode(line) for line in lines]
    return {
        "head": found,
        "error": error(content),
        **msgspec.to_builtins({"usage": usage, "reports": reports}),
    }


def error(content: bytes) -> str | None:
    if content.split()[1] == b"200":
        return None
    shape = AnthropicErrorBody if body(content).startswith(b'{"type":"error"') else ErrorBody
    return msgspec.json.decode(body(content), type=shape).error.code


def demand(content: bytes) -> Any:
    return msgspec.to_builtins(msgspec.json.decode(content, type=DemandReport))


def root_keys(content: bytes) -> list[list[str]]:
    """Return what each root key becomes for a deployment: a key, and the line by which engines accept it."""
    keys = [derive_key(root, "6f1a") for root in parse_root_keys(content)]
    return [[key, hash_line(key)] for key in keys]


def key_lines(content: bytes) -> list[str]:
    return [parse_key_line(line).hex() for line in content.splitlines()]


def adapters(content: bytes) -> dict[str, str]:
    """Return the adapters of a file, or of a request."""
    listed = body(content) if content.startswith(b"PUT ") else content
    return msgspec.json.decode(listed, type=WantedAdapters).by_name()


def adapter_states(content: bytes) -> Any:
    return msgspec.to_builtins(msgspec.json.decode(content, type=AdapterStates))


def shortage(content: bytes) -> Any:
    found = find_shortage(content.decode())
    return found and [*found, found.is_on_gpu]


def endpoints_file(content: bytes) -> Any:
    return msgspec.to_builtins(EndpointsFile.decode(content))


def collect(value: Any, found: defaultdict[str, dict[str, bool]]) -> None:
    """Collect the values of our labels and annotations in a manifest, by the name of the constant."""
    if isinstance(value, dict):
        for name, label in texts_in(labels).items():
            if label in value and label.startswith(f"{api.GROUP}/"):
                is_computed = name.removesuffix("_ANNOTATION") in COMPUTED
                found[name]["computed" if is_computed else value[label]] = True
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        collect(item, found)


def metadata(content: bytes) -> dict[str, dict[str, bool]]:
    """Return the values of our labels and annotations in a manifest, by the name of the constant."""
    found: defaultdict[str, dict[str, bool]] = defaultdict(dict)
    collect(json.loads(content), found)
    return found


def deployment(content: bytes) -> dict[str, Any]:
    """Return the identity and the reported adapters of an LLMDeployment, and its annotations."""
    manifest = json.loads(content)
    reported = msgspec.convert(manifest.get("status", {}).get("adapters", []), list[DeploymentAdapter])
    return {
        "is ours": [manifest["apiVersion"] == api.API_VERSION, manifest["kind"] == api.KIND],
        "key": str(api.Key.of(manifest)),
        "adapters": msgspec.to_builtins(reported),
        "annotations": metadata(content),
    }


DECODERS = {
    "request": request,
    "answer": answer,
    "demand": demand,
    "root_keys": root_keys,
    "key_lines": key_lines,
    "adapters": adapters,
    "adapter_states": adapter_states,
    "shortage": shortage,
    "endpoints_file": endpoints_file,
    "metadata": metadata,
    "deployment": deployment,
}


def decode(decoder: str, content: str) -> Any:
    """Return what the contract makes of a text, or the error that it raises."""
    try:
        return DECODERS[decoder](content.encode())
    except Exception as error:
        return {"failure": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    results = [decode(*case) for case in json.load(sys.stdin)]
    json.dump({"contract": engine_server.contract.__file__, "results": results}, sys.stdout)
