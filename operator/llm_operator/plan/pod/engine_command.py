"""The command line of an engine's container. In templates, and in their records, it is text."""

from collections.abc import Mapping
from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCommand:
    """The arguments of `fairlead engine`: a model, a field for each flag in the order of flags, and the user's flags.

    Flags without a value are left out.
    """

    model: str
    api_key_file: str | None = None
    enable_admin: bool = False
    admin_host: str | None = None
    admin_port: int | None = None
    admin_key_file: str | None = None
    served_model_name: str
    host: str | None = None
    port: int | None = None
    # A Unix socket in place of host and port.
    uds: str | None = None
    # In seconds.
    drain_timeout: int
    max_model_len: int | None = None
    tensor_parallel_size: int | None = None
    enable_lora: bool = False
    adapters_file: str | None = None
    max_loras: int | None = None
    max_cpu_loras: int | None = None
    # Flags of `engine.args`. They come last, so that they take precedence.
    args: tuple[str, ...] = ()

    def arguments(self) -> list[str]:
        """Return the arguments of the container."""
        flags = arguments_of({name: getattr(self, name) for name in FLAGS})
        return ["engine", self.model, *flags, *self.args]


# The fields that are flags, by the names of the engine's settings.
FLAGS = tuple(field.name for field in fields(EngineCommand) if field.name not in ("model", "args"))


def arguments_of(flags: Mapping[str, str | int | bool | None]) -> list[str]:
    """Return the arguments that set flags; those that are None or False are left out."""
    given = {
        flag_of(name): value for name, value in flags.items() if value is not None and value is not False
    }
    return [flag if value is True else f"{flag}={value}" for flag, value in given.items()]


def flag_of(name: str) -> str:
    """Return the flag of an engine's setting."""
    return f"--{name.replace('_', '-')}"


def setting_of(argument: str) -> str | None:
    """Return the engine's setting that an argument sets, spelled in any way; None for a value."""
    if not argument.startswith("--"):
        return None
    return argument.split("=")[0].removeprefix("--").replace("-", "_").removeprefix("no_")
