"""The router's endpoints file: the engines of each deployment, and those that serve each adapter."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import aiohttp
import msgspec

from engine_server.contract.cluster.endpoints_file import EndpointsFile, FileAdapter, FileDeployment
from llm_local.engines import Engine
from llm_local.replica import Pod


class Card(msgspec.Struct, frozen=True):
    """A model that an engine lists."""

    id: str
    # The model that an adapter adapts.
    parent: str | None = None


class ModelList(msgspec.Struct, frozen=True):
    """The answer of an engine's /v1/models."""

    data: tuple[Card, ...]


@dataclass(slots=True)
class Endpoints:
    """The file, which is written again whenever an engine with adapters has started."""

    file: Path
    pods: Sequence[Pod]
    engines: Sequence[Engine]
    # By the address of an engine that has started.
    adapters: dict[str, frozenset[str]] = field(default_factory=dict)

    def write(self) -> None:
        """Replace the file, so that the router never reads half of one."""
        fresh = self.file.with_suffix(".new")
        fresh.write_bytes(self.content().encode())
        fresh.replace(self.file)

    async def record(self, session: aiohttp.ClientSession, engine: Engine) -> None:
        """Ask an engine that is ready for its adapters, and write them."""
        if not engine.pod.adapters.adapters:
            return
        try:
            async with session.get("/v1/models") as answer:
                listed = msgspec.json.decode(await answer.read(), type=ModelList).data
        except (aiohttp.ClientError, OSError, ValueError):
            listed = ()
        self.adapters[engine.address] = frozenset(card.id for card in listed if card.parent is not None)
        self.write()

    def content(self) -> EndpointsFile:
        """Return the file. The first deployment of the command line counts as the oldest."""
        return EndpointsFile(
            tuple(
                FileDeployment(
                    namespace=pod.deployment.namespace,
                    name=pod.deployment.name,
                    served_names=pod.deployment.served_names,
                    policy=pod.deployment.spec.routing.policy,
                    created=datetime.fromtimestamp(index, UTC),
                    endpoints=tuple(engine.address for engine in self.engines_of(pod)),
                    adapters=tuple(self.adapter(each.name, pod) for each in pod.adapters.adapters),
                )
                for index, pod in enumerate(self.pods)
            )
        )

    def engines_of(self, pod: Pod) -> list[Engine]:
        return [engine for engine in self.engines if engine.pod is pod]

    def adapter(self, name: str, pod: Pod) -> FileAdapter:
        started = [engine for engine in self.engines_of(pod) if engine.address in self.adapters]
        serving = [engine for engine in started if name in self.adapters[engine.address]]
        failed = [engine.program.name for engine in started if engine not in serving]
        error = f"{', '.join(failed)} could not load it, and logged why" if failed else None
        return FileAdapter(name, tuple(engine.address for engine in serving), error)
