"""What the operator is told when it starts."""

from dataclasses import dataclass
from importlib.metadata import version


@dataclass(frozen=True, slots=True)
class Settings:
    engine_image: str
    namespaces: tuple[str, ...] = ()  # none: all of them
    allow_service_account: bool = False  # whether a podTemplate may choose one
    version: str = version("fairlead")
