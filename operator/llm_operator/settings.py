"""The operator's settings, which are fixed at its start."""

from dataclasses import dataclass
from importlib.metadata import version


@dataclass(frozen=True, slots=True)
class Settings:
    # For LLMDeployments without an image of their own.
    engine_image: str
    # The namespaces to watch; all if there are none.
    namespaces: tuple[str, ...] = ()
    # Allow a podTemplate to choose a service account.
    allow_service_account: bool = False
    version: str = version("fairlead")
