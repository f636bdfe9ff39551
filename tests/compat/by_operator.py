"""Exchanges that the operator writes."""

import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
from compat.exchange import Exchange
from compat.http_text import parse_message
from compat.sample import (
    ADAPTER,
    ADAPTER_URI,
    ADMIN_ROOTS,
    CACHED_DEPLOYMENT,
    CACHED_MANIFEST,
    DEPLOYMENT,
    KEY,
    MANIFEST,
    ROUTER_ROOTS,
    SPECS,
    UID,
    config_map,
    observe,
    planned,
)
from compat.scripted_engine import EngineServer
from llm_operator.api.model_cache import model_cache
from llm_operator.api.spec import parse
from llm_operator.api.spec_hash import equal_hashes, spec_hash
from llm_operator.api.status import Condition, ServedAdapter, Status
from llm_operator.control import adapter_pusher
from llm_operator.control.adapter_pusher import AdapterPusher, Goal
from llm_operator.control.pod_questions import PodQuestions
from llm_operator.control.record import is_applied, marked
from llm_operator.control.watching.claims import claim_of
from llm_operator.control.watching.scales import scale_of
from llm_operator.control.watching.store import owners
from llm_operator.kinds import CHILDREN
from llm_operator.observed import ChildKey, Manifest, Replica
from llm_operator.plan.children.cache import is_cached
from llm_operator.plan.ownership import is_followed, may_apply, may_delete
from llm_operator.plan.pod.template_record import read, template_in_force

from engine_server.contract.cluster import labels
from engine_server.contract.cluster.adapters import WantedAdapter, WantedAdapters
from engine_server.contract.cluster.endpoint_slices import EndpointSlice
from engine_server.contract.cluster.engine_keys import derive_key
from engine_server.engine.engine_args import AsyncEngineArgs
from engine_server.router.routing.endpoint import Address
from engine_server.router.sources.kubernetes.objects import LLMDeployment
from engine_server.router.sources.kubernetes.source import adapters_of, serving_pods
from engine_server.router.sources.kubernetes.start import find_obstacle
from engine_server.server.arguments import ServerArgs
from engine_server.server.command import adapter_defaults
from engine_server.server.http.api_keys import ApiKeys
from engine_server.server.settings import ApiSettings
from engine_server.server.sources import Settings
from engine_server.server.wanted_adapters import read_adapters_file

OPERATOR = "fairlead-system/fairlead-operator"
CLAIM_UID = "c1"


def as_json(value: object) -> bytes:
    """Return JSON as people read it."""
    return json.dumps(value, indent=1).encode()


# --- children: what an operator finds that another one has applied


def write_children() -> dict[str, bytes]:
    children = planned(MANIFEST).values()
    return {f"{child['kind']} {child['metadata']['name']}": as_json(marked(child)) for child in children}


def read_child(content: bytes) -> dict[str, Any]:
    """Return what the operator makes of a child that exists: whose it is, and whether it must change."""
    existing: Manifest = json.loads(content)
    key = ChildKey.of(existing)
    found: dict[str, Any] = {
        "owners": sorted(map(str, owners(CHILDREN[key.api_version, key.kind], existing))),
        "may be applied": may_apply(existing, DEPLOYMENT),
        "may be deleted": may_delete(existing, DEPLOYMENT),
        "is as it was applied": is_applied(without_mark(existing), existing),
    }
    if key.kind == "Deployment":
        observed = observe(MANIFEST, [existing])
        recorded, kept = (
            read(existing["metadata"]["annotations"]),
            template_in_force(DEPLOYMENT, observed),
        )
        found["template is kept"] = kept is not None and kept.template == existing["spec"]["template"]
        found["rolled at"] = recorded and recorded.rolled_at
        found["next template is kept"] = template(planned(MANIFEST, [existing])) == template([existing])
    if key.kind == "Service":
        found["in the router"] = read_service(existing)
    return found


def without_mark(child: Manifest) -> Manifest:
    """Return a child as it was planned."""
    metadata = dict(child["metadata"])
    kept = {
        name: value
        for name, value in metadata.pop("annotations", {}).items()
        if not name.endswith("/applied")
    }
    return {**child, "metadata": {**metadata, **({"annotations": kept} if kept else {})}}


def template(children: Any) -> Any:
    """Return the pod template of the one Deployment among children."""
    listed = children.values() if isinstance(children, dict) else children
    (found,) = (child["spec"]["template"] for child in listed if child["kind"] == "Deployment")
    return found


def read_service(service: Manifest) -> dict[str, Any]:
    """Return what the router makes of an EndpointSlice of a Service, whose labels and names of ports it has."""
    metadata = service["metadata"]
    # As Kubernetes makes it.
    slice_labels = metadata["labels"] | {"kubernetes.io/service-name": metadata["name"]}
    endpoint_slice = {
        "metadata": {"name": "s", "namespace": metadata["namespace"], "labels": slice_labels},
        "ports": [{"name": port["name"], "port": 8000} for port in service["spec"]["ports"]],
        "endpoints": [{"addresses": ["10.0.0.7"], "targetRef": {"name": "llama-engine-1"}}],
    }
    found = msgspec.convert(endpoint_slice, EndpointSlice)
    pods = {pod: str(address) for pod, address in serving_pods([found]).items()}
    return {"owner": str(found.owner), "pods": pods, "selects": service["spec"]["selector"]}


# --- the hashes by which an operator finds the template that another one has recorded for a spec


def write_spec_hashes() -> dict[str, bytes]:
    return {
        case: as_json({"spec": spec, "hash": spec_hash(parse(MANIFEST | {"spec": spec}).spec)})
        for case, spec in SPECS.items()
    }


def read_spec_hash(content: bytes) -> dict[str, Any]:
    recorded = json.loads(content)
    spec = parse(MANIFEST | {"spec": recorded["spec"]}).spec
    return {"is of the spec": recorded["hash"] in equal_hashes(spec)}


# --- the command lines of pods


def write_arguments() -> dict[str, bytes]:
    pod = template(planned(MANIFEST))["spec"]
    return {entry["name"]: as_json(entry["args"]) for entry in (*pod["containers"], *pod["initContainers"])}


def read_arguments(content: bytes) -> dict[str, Any]:
    """Return the settings that an engine takes from its command line, or the words of `fairlead fetch`."""
    program, *words = json.loads(content)
    if program == "fetch":
        return {"words": words}
    settings = Settings("fairlead engine", "", AsyncEngineArgs, ApiSettings, ServerArgs)
    options = vars(settings.read(words, {}, adapter_defaults))
    names = (
        "model", "served_model_name", "host", "port", "drain_timeout", "api_key_file", "enable_admin", "admin_host",
        "admin_port", "admin_key_file", "max_model_len", "enable_lora", "adapters_file", "max_loras", "max_cpu_loras",
        "seed",
    )  # fmt: skip
    values = {name: options[name] for name in names}
    return {name: str(value) if isinstance(value, Path) else value for name, value in values.items()}


# --- files in ConfigMaps


def write_key_files() -> dict[str, bytes]:
    return {role: content.encode() for role, content in config_map("keys").items()}


def read_key_file(content: bytes) -> dict[str, bool]:
    """Return which keys an engine accepts: those derived from each root key, and the root keys themselves."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "keys"
        file.write_bytes(content)
        keys = ApiKeys((), file)
    roots = (*ROUTER_ROOTS, *ADMIN_ROOTS)
    derived = {
        f"derived from {root.decode()}": keys.accept([derive_key(root, UID).encode()]) for root in roots
    }
    return derived | {"a root key": keys.accept(roots)}


def write_adapters_file() -> dict[str, bytes]:
    return {"one adapter": config_map("adapters")["adapters.json"].encode()}


def read_adapters_list(content: bytes) -> dict[str, Any]:
    """Return the adapters of an engine that starts, and those that the operator sends to others."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "adapters.json"
        file.write_bytes(content)
        engine = read_adapters_file(file)
    child = planned(MANIFEST)[ChildKey("v1", "ConfigMap", "llama-adapters")]
    existing = child | {"data": {"adapters.json": content.decode()}}
    in_force = observe(MANIFEST, [existing]).adapters_in_force
    return {"engine": engine, "operator": in_force and in_force.by_name()}


# --- the admin API


def write_adapters_request() -> dict[str, bytes]:
    return {"PUT": asyncio.run(pushed_request())}


async def pushed_request() -> bytes:
    """Return the request by which the operator sends adapters, without headers of its HTTP library."""
    received = asyncio.get_running_loop().create_future()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        (length,) = (
            int(value) for name, value in parse_message(head).headers if name.lower() == b"content-length"
        )
        received.set_result(head + await reader.readexactly(length))
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    pusher = AdapterPusher(lambda _: None, PodQuestions())
    goal = Goal(WantedAdapters([WantedAdapter(ADAPTER, ADAPTER_URI)]), derive_key(ADMIN_ROOTS[0], UID))
    with patch.object(adapter_pusher, "ADMIN_PORT", port):
        pusher.follow(KEY, goal, [Replica("llama-engine-1", "", "127.0.0.1")])
        work = asyncio.create_task(pusher.run())
        request = parse_message(await received)
        work.cancel()
        await asyncio.wait([work])
    server.close()
    kept = [(name, value) for name, value in request.headers if name in (b"Authorization", b"Content-Type")]
    return request._replace(headers=kept).encode()


def read_adapters_request(content: bytes) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "admin"
        file.write_text(config_map("keys")["admin"])
        server = EngineServer(admin_key_file=file)
    first, last = map(parse_message, server.ask_admin(content))
    return {"status": first.status, "states": json.loads(last.body)}


# --- the cache of a model


def cached_children() -> tuple[list[Manifest], list[Manifest]]:
    """Return the children while a model is downloaded, and those after that."""
    downloading = list(planned(CACHED_MANIFEST).values())
    existing = [with_state(child) for child in downloading]
    return existing, list(planned(CACHED_MANIFEST, existing).values())


def with_state(child: Manifest) -> Manifest:
    """Return a child as it exists once the download has ended."""
    if child["kind"] == "PersistentVolumeClaim":
        return child | {"metadata": {**child["metadata"], "uid": CLAIM_UID}}
    if child["kind"] == "Job":
        complete = {"type": "Complete", "status": "True"}
        return child | {"status": {"conditions": [complete], "completionTime": "2026-01-01T00:00:00Z"}}
    return child


def write_cache() -> dict[str, bytes]:
    downloading, downloaded = cached_children()
    kinds = ("Job", "PersistentVolumeClaim", "Deployment")
    job, claim, *_ = (child for kind in kinds for child in downloading if child["kind"] == kind)
    (kept,) = (child for child in downloaded if child["kind"] == "PersistentVolumeClaim")
    (workload,) = (child for child in downloaded if child["kind"] == "Deployment")
    return {
        "Job": as_json({name: value for name, value in job.items() if name != "status"}),
        "claim": as_json({name: value for name, value in claim.items() if name != "status"}),
        "claim with the model": as_json(with_state(kept)),
        "Deployment with the model": as_json(
            {
                **workload,
                "spec": {name: value for name, value in workload["spec"].items() if name != "template"},
            }
        ),
    }


def read_cached(content: bytes) -> dict[str, Any]:
    existing: Manifest = json.loads(content)
    key, cache = ChildKey.of(existing), model_cache(CACHED_DEPLOYMENT.spec.model)
    assert cache is not None
    claims = [
        with_state({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": cache.claim}})
    ]
    observed = observe(CACHED_MANIFEST, [*claims, existing])
    found: dict[str, Any] = {
        "name": key.name,
        "owners": sorted(map(str, owners(CHILDREN[key.api_version, key.kind], existing))),
        "model is there": is_cached(cache, CACHED_DEPLOYMENT, observed),
    }
    if key.kind == "Job":
        pod = existing["spec"]["template"]
        found |= {
            "is followed": is_followed(existing, CACHED_DEPLOYMENT),
            "cache of its pods": pod["metadata"]["labels"][labels.MODEL_CACHE_LABEL],
            "words": pod["spec"]["containers"][0]["args"],
        }
    return found


# --- the LLMDeployment


def write_deployments() -> dict[str, bytes]:
    """Return the deployment, with the status that the operator reports, in states that a router tells apart."""
    dated = {"last_transition_time": "2026-01-01T00:02:00Z", "observed_generation": 3}
    ready = Condition(
        type="Ready", status="True", reason="Available", message="2 replicas are ready", **dated
    )
    crashed = Condition(
        type="Ready", status="False", reason="CrashLoopBackOff", message="no memory left", **dated
    )
    served = ServedAdapter(name=ADAPTER, hash="hash", pods=("llama-engine-1",))
    both = {"observed_generation": 3, "operator": OPERATOR, "replicas": 2}
    serving = Status(**both, ready_replicas=2, adapters=(served,), conditions=(ready,))
    failing = Status(**both, restarts=2, conditions=(crashed,))
    paused = {**MANIFEST["metadata"], "annotations": {labels.PAUSED_ANNOTATION: "true"}}
    states = {
        "serving": MANIFEST | {"status": serving.as_manifest()},
        "failing": MANIFEST | {"status": failing.as_manifest()},
        "asleep": MANIFEST | {"spec": MANIFEST["spec"] | {"replicas": 0}},
        "paused": MANIFEST | {"metadata": paused},
    }
    return {case: as_json(manifest) for case, manifest in states.items()}


def read_deployment(content: bytes) -> dict[str, Any]:
    """Return what an operator and a router make of a deployment."""
    manifest: Manifest = json.loads(content)
    parsed, scale, claim = parse(manifest), scale_of(manifest), claim_of(manifest, ())
    found = msgspec.json.decode(content, type=LLMDeployment)
    obstacle = find_obstacle(found)
    adapters = adapters_of(found, {"llama-engine-1": Address("10.0.0.7", 8000)})
    return {
        "operator": {
            "spec hash": spec_hash(parsed.spec),
            "rolled at": parsed.rolled_at,
            "is paused": observe(manifest).is_paused,
            "names": claim.served_names,
            "scale": scale and [scale.replicas, scale.ready_replicas, scale.operator],
            "managed by": manifest.get("status", {}).get("operator"),
        },
        "router": {
            "names": found.spec.model.served_names,
            "policy": found.spec.routing.policy,
            "drain timeout": found.spec.rollout.drain_timeout_seconds,
            "adapters": {one.name: [[*map(str, one.addresses)], one.hash, one.error] for one in adapters},
            "obstacle": [str(obstacle), obstacle.permanent],
        },
    }


EXCHANGES = (
    Exchange("children", "operator -> operator, router", write_children, read_child, "metadata"),
    Exchange("spec-hashes", "operator -> operator", write_spec_hashes, read_spec_hash),
    Exchange("arguments", "operator -> engine, fairlead fetch", write_arguments, read_arguments),
    Exchange("engine-keys", "operator's ConfigMap -> engine", write_key_files, read_key_file, "key_lines"),
    Exchange(
        "adapters-file", "operator's ConfigMap -> engine", write_adapters_file, read_adapters_list, "adapters"
    ),
    Exchange(
        "adapters-request", "operator -> engine", write_adapters_request, read_adapters_request, "adapters"
    ),
    Exchange("model-cache", "operator -> operator", write_cache, read_cached, "metadata"),
    Exchange(
        "deployment", "user, operator -> router, operator", write_deployments, read_deployment, "deployment"
    ),
)
