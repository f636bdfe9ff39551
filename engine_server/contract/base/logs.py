"""The form of the logs of all programs: lines with time, level and component, or a JSON object per line."""

import json
import logging
import os
import sys
from argparse import ArgumentParser
from datetime import UTC, datetime
from typing import Literal, Protocol

Level = Literal["debug", "info", "warning", "error"]
Format = Literal["text", "json"]
LEVELS: tuple[Level, ...] = ("debug", "info", "warning", "error")
FORMATS: tuple[Format, ...] = ("text", "json")
LEVEL_HELP = "the least level of lines that are logged (default: FAIRLEAD_LOG_LEVEL, or info)"
FORMAT_HELP = "lines of text, or a JSON object per line (default: FAIRLEAD_LOG_FORMAT, or text)"
# Programs that are started by others have the settings of these.
LEVEL_VARIABLE, FORMAT_VARIABLE = "FAIRLEAD_LOG_LEVEL", "FAIRLEAD_LOG_FORMAT"


class LogStream(Protocol):
    def write(self, text: str, /) -> object: ...
    def flush(self) -> object: ...


class Lines(logging.StreamHandler[LogStream]):
    """Writes the logs of one of these programs."""


class JsonLines(logging.Formatter):
    def __init__(self, component: str) -> None:
        super().__init__()
        self.component = component

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "component": self.component,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def add_log_flags(parser: ArgumentParser) -> None:
    parser.add_argument("--log-level", choices=LEVELS, help=LEVEL_HELP)
    parser.add_argument("--log-format", choices=FORMATS, help=FORMAT_HELP)


def configure_logs(
    component: str, level: str | None = None, form: str | None = None, stream: LogStream | None = None
) -> None:
    """Write the logs of this process, by default to stderr; processes that it starts get the same settings.

    level, form: None for those of the environment. A second call changes them.
    """
    warnings: list[str] = []
    level = chosen(LEVEL_VARIABLE, level, LEVELS, "info", warnings)
    form = chosen(FORMAT_VARIABLE, form, FORMATS, "text", warnings)
    root = logging.getLogger()
    handler = next((each for each in root.handlers if isinstance(each, Lines)), None)
    if handler is None:
        if root.handlers:  # a program that has its own logs
            return
        root.addHandler(handler := Lines(stream or sys.stderr))
    text = logging.Formatter(f"%(asctime)s %(levelname)s {component}: %(message)s")
    handler.setFormatter(JsonLines(component) if form == "json" else text)
    root.setLevel(level.upper())
    for warning in warnings:
        root.warning(warning)


def chosen(
    variable: str, given: str | None, allowed: tuple[str, ...], default: str, warnings: list[str]
) -> str:
    """Return a setting, and leave it in the environment; a value there that is not allowed adds a warning."""
    named = given or os.environ.get(variable) or default
    setting = named.lower()
    if setting not in allowed:
        warnings.append(
            f"{variable} is {named[:40]!a}, and can be {', '.join(allowed)}; it is taken for {default}"
        )
        setting = default
    os.environ[variable] = setting
    return setting
