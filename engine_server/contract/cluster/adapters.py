"""The adapters of an engine, as its admin API and the file of `--adapters-file` describe them.

`PUT /adapters` and the file take {"adapters": [{"name": ..., "uri": ...}], "model": ...}, all that the engine should
serve; `GET /adapters` and the answer to a PUT report the state of each. A list that names another model is ignored.
"""

from typing import Literal

import msgspec

from engine_server.contract.base.decoding import decode
from engine_server.contract.base.ranges import Word

# The path of the admin API.
ADAPTERS_PATH = "/adapters"
# The environment variable of an engine with the URI of its model, by which lists name it.
MODEL_VARIABLE = "FAIRLEAD_ADAPTERS_MODEL"
# Different LoRA adapters in a step of an engine that serves a list of adapters, in slots of the device's memory.
MAX_IN_STEP = 8
# Adapters of each kind in the memory of its host; others are read again from their folders.
MAX_IN_MEMORY = 32


class WantedAdapter(msgspec.Struct, frozen=True):
    """An adapter that an engine should serve."""

    name: str
    # A URI, as that of a model, where the engine runs.
    uri: str


class WantedAdapters(msgspec.Struct, frozen=True):
    """All adapters that an engine should serve."""

    adapters: list[WantedAdapter] = []
    # The URI of the model that they are for; empty if it is not known.
    model: str = ""

    def is_for(self, model: str) -> bool:
        """Return False for a list that names another model. Engines that do not know theirs take every list."""
        return "" in (self.model, model) or self.model == model

    def by_name(self) -> dict[str, str]:
        """Return the URIs. Raises ValueError for an empty or repeated name, and for an empty URI."""
        names = [adapter.name for adapter in self.adapters]
        if len(set(names)) < len(names):
            raise ValueError("two adapters have one name")
        if not all(adapter.name and adapter.uri for adapter in self.adapters):
            raise ValueError("an adapter has a name and a URI, neither of them empty")
        return {adapter.name: adapter.uri for adapter in self.adapters}


class AdapterState(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state of one adapter in one engine."""

    name: str
    uri: str
    state: Literal["loading", "ready", "failed"]
    # Identifies the content that is served.
    hash: Word | None = None
    # The reason of a failure.
    error: str | None = None


class AdapterStates(msgspec.Struct, frozen=True):
    """The states of the adapters that an engine should serve, in the order in which they were given."""

    adapters: list[AdapterState]

    @classmethod
    def decode(cls, content: bytes) -> "AdapterStates":
        """Parse an answer of the admin API. Raises ValueError for what is none."""
        return decode(_states_decoder.decode, content)


_states_decoder = msgspec.json.Decoder(AdapterStates)


class DeploymentAdapter(msgspec.Struct, frozen=True, omit_defaults=True):
    """An adapter of a deployment: an entry of `status.adapters` of an LLMDeployment."""

    name: str
    # Identifies the content that the pods serve.
    hash: str | None = None
    # Names of the pods that have it.
    pods: list[str] = []
    # Why a pod, or every pod, can't serve it.
    error: str | None = None
