"""The state of a download, read from its pods and from Events for as long as it runs."""

import asyncio
from collections.abc import Iterable

import aiohttp
import msgspec

from engine_server.contract.authority import authority
from engine_server.contract.decoding import decode
from engine_server.contract.labels import ENGINE_PORT, MODEL_CACHE_LABEL
from engine_server.contract.paths import PROGRESS_PATH
from engine_server.contract.ranges import Total
from llm_operator.api.model_cache import ModelCache
from llm_operator.control.cluster import Cluster
from llm_operator.control.resources import EVENTS, PODS
from llm_operator.observed import Fetch, Manifest

PROGRESS_TIMEOUT = aiohttp.ClientTimeout(total=2)


class Progress(msgspec.Struct, frozen=True):
    """The answer of a container that fetches, in bytes."""

    done: Total = 0
    total: Total = 0


decoder = msgspec.json.Decoder(Progress)


async def observe_fetch(cluster: Cluster, namespace: str, cache: ModelCache) -> Fetch:
    page = await cluster.call("GET", PODS.path(namespace), labelSelector=f"{MODEL_CACHE_LABEL}={cache.name}")
    pods: list[Manifest] = page["items"]
    progress = await ask_for_progress(pods)
    if progress is not None:
        return Fetch(tuple(pods), progress.done, progress.total)
    names = [cache.claim, *(pod["metadata"]["name"] for pod in pods)]
    return Fetch(tuple(pods), warnings=await warnings_about(cluster, namespace, names))


async def ask_for_progress(pods: Iterable[Manifest]) -> Progress | None:
    """Return the progress of the first pod that reports it."""
    async with aiohttp.ClientSession(timeout=PROGRESS_TIMEOUT) as session:
        for pod in pods:
            address = pod.get("status", {}).get("podIP")
            if address is None or pod["status"].get("phase") != "Running":
                continue
            url = f"http://{authority(address, ENGINE_PORT)}{PROGRESS_PATH}"
            try:
                async with session.get(url) as answer:
                    return decode(decoder.decode, await answer.read())
            except (aiohttp.ClientError, OSError, ValueError):
                continue
    return None


async def warnings_about(cluster: Cluster, namespace: str, names: Iterable[str]) -> tuple[Manifest, ...]:
    """Return the Warnings about objects of these names, the newest last."""
    selectors = [f"type=Warning,involvedObject.name={name}" for name in names]
    pages = await asyncio.gather(
        *(cluster.call("GET", EVENTS.path(namespace), fieldSelector=selector) for selector in selectors)
    )
    events = [event for page in pages for event in page["items"]]
    return tuple(sorted(events, key=lambda event: str(event.get("lastTimestamp") or "")))
