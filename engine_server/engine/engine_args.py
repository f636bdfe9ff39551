"""The engine's arguments, made in Python or from the command line, and resolved to an EngineConfig."""

import argparse
from dataclasses import dataclass, fields
from typing import Self

from engine_server.config import EngineConfig, UsageContext
from engine_server.engine.arguments.fields import Arguments, argument
from engine_server.engine.arguments.flags import add_flags, parse_size

__all__ = ["AsyncEngineArgs", "EngineArgs", "parse_size"]


@dataclass(kw_only=True)
class EngineArgs(Arguments):
    """The arguments of an engine, with vLLM's names and defaults where the meaning is the same."""

    @classmethod
    def add_cli_args(cls, parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
        """Add a flag for each field to `parser`; `model` is positional and may be left out."""
        return add_flags(parser, cls)

    @classmethod
    def from_cli_args(cls, args: argparse.Namespace) -> Self:
        """Make arguments from the namespace of a parser with `add_cli_args`."""
        return cls(**{item.name: getattr(args, item.name) for item in fields(cls)})

    def create_engine_config(self, usage_context: UsageContext | None = None) -> EngineConfig:
        """Resolve the model and every default. Raises ValueError, which names the argument.

        usage_context: accepted as in vLLM; no default depends on it.
        """
        from engine_server.engine.arguments.resolution import resolve_config

        return resolve_config(self)


@dataclass(kw_only=True)
class RequestLogArguments:
    """Requests in the log."""

    enable_log_requests: bool = argument(False, "log each request that is added or finished")


@dataclass(kw_only=True)
class AsyncEngineArgs(EngineArgs, RequestLogArguments):
    """EngineArgs for the asynchronous engine."""
