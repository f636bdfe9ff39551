"""The demand that a router reports on its internal port, and by which the operator scales deployments."""

import msgspec

from engine_server.contract.base.decoding import decode
from engine_server.contract.base.ranges import Count, Seconds, Share

DEMAND_PATH = "/internal/demand"


class EndpointLoad(msgspec.Struct, frozen=True):
    """The last report that a router has of one engine."""

    # http://HOST:PORT
    address: str
    # Share of the KV cache that is in use.
    kv: Share
    # Seconds since the engine reported it.
    age: Seconds


class DeploymentDemand(msgspec.Struct, frozen=True):
    """The requests of one router for one deployment."""

    namespace: str
    name: str
    # Requests that a replica has, or is about to get.
    in_flight: Count
    # Requests that wait for a replica.
    held: Count
    # Seconds since the last request ended, or since the router's start; 0 while there are requests.
    idle_seconds: Seconds
    # Engines that have not reported are left out.
    endpoints: tuple[EndpointLoad, ...] = ()
    # Requests that each engine has of this router, by address; engines without any are left out.
    requests: dict[str, Count] = {}


class DemandReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """The page: every deployment that the router knows."""

    deployments: tuple[DeploymentDemand, ...]
    # Entries that were not valid, of a page that was decoded.
    num_invalid: Count = 0

    @classmethod
    def decode(cls, content: bytes) -> "DemandReport":
        """Parse a page, entry by entry: an invalid one is left out. Raises ValueError for what is no page."""
        entries = decode(_page_decoder.decode, content).deployments
        valid = []
        for entry in entries:
            try:
                valid.append(decode(_entry_decoder.decode, entry))
            except ValueError:
                continue
        return cls(tuple(valid), len(entries) - len(valid))


class _Page(msgspec.Struct, frozen=True):
    deployments: tuple[msgspec.Raw, ...]


_page_decoder = msgspec.json.Decoder(_Page)
_entry_decoder = msgspec.json.Decoder(DeploymentDemand)
