"""The part that objects of every kind have in Kubernetes' API."""

from datetime import datetime

import msgspec

from engine_server.contract.base.ranges import Total

# Namespace and name.
Identity = tuple[str, str]


class Metadata(msgspec.Struct, rename="camel"):
    """The metadata of an object."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    # Grows with each change of the spec.
    generation: Total = 0
    creation_timestamp: datetime | None = None


class Object(msgspec.Struct):
    """The part that every kind has; kinds add the fields that are read."""

    metadata: Metadata

    @property
    def identity(self) -> Identity:
        """Namespace and name."""
        return self.metadata.namespace, self.metadata.name
