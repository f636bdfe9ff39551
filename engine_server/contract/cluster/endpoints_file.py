"""The endpoints file: deployments and addresses that `fairlead up` writes and the router reads."""

from datetime import datetime

import msgspec

from engine_server.contract.cluster.api import DEFAULT_NAMESPACE


class FileAdapter(msgspec.Struct, frozen=True, omit_defaults=True):
    """An adapter of a deployment."""

    name: str
    # The addresses of the engines that serve it.
    endpoints: tuple[str, ...] = ()
    # Why an engine can't.
    error: str | None = None


class FileDeployment(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One deployment with the addresses of its engines."""

    name: str
    # http://HOST:PORT or unix:/PATH of each replica.
    endpoints: tuple[str, ...]
    namespace: str = DEFAULT_NAMESPACE
    # Without any, the deployment's name is served.
    served_names: tuple[str, ...] = ()
    # None: the router's default policy.
    policy: str | None = None
    # The oldest deployment keeps a contested name.
    created: datetime | None = None
    adapters: tuple[FileAdapter, ...] = ()
    # The path at which its engines answer 200 while they take requests, and the file with the key that they take,
    # relative to the folder of this one; None: the router's `--ready-path` and `--endpoint-key-file`.
    ready_path: str | None = None
    endpoint_key_file: str | None = None


class EndpointsFile(msgspec.Struct, frozen=True):
    """The whole file, as JSON."""

    deployments: tuple[FileDeployment, ...]

    @classmethod
    def decode(cls, content: bytes) -> "EndpointsFile":
        """Parse the content of a file. Raises ValueError (msgspec's) for what is not of this form."""
        return msgspec.json.decode(content, type=cls)

    def encode(self) -> bytes:
        """Return the content of the file, indented for people who read it."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1)
