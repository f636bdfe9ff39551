"""The sources of settings: flags override a YAML file, which overrides environment variables and then defaults."""

from __future__ import annotations

import argparse
import difflib
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple, NoReturn, get_args, get_origin, get_type_hints

import yaml

from engine_server.contract.base.command_line import Parser
from engine_server.contract.cluster.adapters import MODEL_VARIABLE
from engine_server.engine.arguments.flags import POSITIONAL, add_flags

PREFIX = "FAIRLEAD_"
# Variables of vLLM that are read where ours is not set.
VLLM_VARIABLES = {"api_key": "VLLM_API_KEY"}
# The key of the admin API, which no flag takes: arguments are visible to others.
ADMIN_KEY = "FAIRLEAD_ADMIN_KEY"
# Variables with our prefix that are no flags.
OTHER_VARIABLES = {ADMIN_KEY, MODEL_VARIABLE, "FAIRLEAD_CACHE", "FAIRLEAD_CONFIG"}
TRUE, FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")

logger = logging.getLogger(__name__)


class Setting(NamedTuple):
    """One flag, by the type of its value."""

    name: str
    kind: Any
    # True if the flag reads a whole value, such as a JSON object, from one text.
    parsed: bool
    # True if several words may follow the flag.
    takes_words: bool

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    def words(self, value: Any) -> list[str]:
        """Return the words of a command line that set the flag. Raises ValueError for a value of another kind."""
        if self.kind is bool:
            return [self.flag if as_bool(value) else "--no-" + self.flag.removeprefix("--")]
        if isinstance(value, bool):
            raise ValueError("it takes no true or false")
        values = value if isinstance(value, list) and not self.parsed else [value]
        texts = [item if isinstance(item, str) else json.dumps(item, default=str) for item in values]
        return texts if self.name == POSITIONAL else [f"{self.flag}={text}" for text in texts]


class SourceParser(Parser):
    """A parser of command lines whose errors name the source of a value that is not the command line itself."""

    source = ""

    def error(self, message: str) -> NoReturn:
        super().error(f"{self.source}: {message}" if self.source else message)


class Settings:
    """The flags of several dataclasses, read from all sources into one namespace."""

    def __init__(self, program: str, description: str, *dataclasses: type) -> None:
        self._parser = parser = SourceParser(
            program, f"{program} MODEL [flags]", description, allow_abbrev=False
        )
        parser.add_argument(
            "--config", type=Path, metavar="FILE", help="a YAML file with flags, as `max-model-len: 2048`"
        )
        self._settings: dict[str, Setting] = {}
        for dataclass in dataclasses:
            add_flags(parser, dataclass)
            hints = get_type_hints(dataclass)
            for item in fields(dataclass):
                options, kind = item.metadata["options"], bare(hints[item.name])
                takes_words = options.get("nargs", "+" if kind is list else None) == "+"
                self._settings[item.name] = Setting(item.name, kind, "type" in options, takes_words)

    def read(
        self,
        argv: list[str],
        environment: Mapping[str, str],
        implied: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda given: {},
    ) -> argparse.Namespace:
        """Return the value of each flag. Ends the process with a message that names the source of a wrong value.

        implied: returns the defaults that depend on the values that are given.
        """
        defaults = vars(self._parser.parse_args([]))
        flags = self._given(self._with_model(argv))
        file = flags.get("config") or environment.get(PREFIX + "CONFIG")
        given = self._from_environment(environment)
        if file:
            given |= self._from_file(Path(file))
        if POSITIONAL in given:  # so that no word of a list is the model
            flags = self._given(argv)
        given |= flags
        return argparse.Namespace(**{**defaults, **implied(given), **given})

    def _with_model(self, argv: list[str]) -> list[str]:
        """Let flags take one word each where the model does not come first, so that none takes the model too."""
        if not argv or not argv[0].startswith("-"):
            return argv
        several = {setting.flag for setting in self._settings.values() if setting.takes_words}
        words: list[str] = []
        for word in argv:
            is_value = words and words[-1].replace("_", "-") in several and not word.startswith("-")
            words = [*words[:-1], f"{words[-1]}={word}"] if is_value else [*words, word]
        return words

    def _given(self, words: list[str]) -> dict[str, Any]:
        """Return the values that a command line sets, without defaults."""
        unset = argparse.Namespace(config=None, **dict.fromkeys(self._settings))
        found = vars(self._parser.parse_args(with_objects(words), unset))
        return {name: value for name, value in found.items() if value not in (None, "")}

    def _from_environment(self, environment: Mapping[str, str]) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for name, setting in self._settings.items():
            for variable in (PREFIX + name.upper(), VLLM_VARIABLES.get(name, "")):
                if text := environment.get(variable):
                    several = setting.kind is list and not setting.parsed and variable.startswith(PREFIX)
                    value = text.split(",") if several else text
                    values |= self._from_source(f"the environment variable {variable}", setting, value)
                    break
        known = {PREFIX + name.upper() for name in self._settings} | OTHER_VARIABLES
        if unknown := sorted(name for name in environment if name.startswith(PREFIX) and name not in known):
            logger.warning("environment variables that are no settings: %s", ", ".join(unknown))
        return values

    def _from_file(self, file: Path) -> dict[str, Any]:
        try:
            content = yaml.safe_load(file.read_bytes())
        except OSError as error:
            self.fail(f"the config file {file} can't be read: {error.strerror}")
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            self.fail(f"the config file {file} is not YAML: {error}")
        if content is None:
            return {}
        if not isinstance(content, dict):
            self.fail(f"the config file {file} takes lines such as `max-model-len: 2048`")
        values: dict[str, Any] = {}
        for key, value in content.items():
            setting = self._settings.get(str(key).replace("-", "_"))
            if setting is None:
                self.fail(
                    f"the config file {file} has the key {str(key)!r}, which is no flag{self._close(str(key))}"
                )
            if value is not None:
                values |= self._from_source(f"the config file {file}", setting, value)
        return values

    def _from_source(self, source: str, setting: Setting, value: Any) -> dict[str, Any]:
        self._parser.source = source
        try:
            return self._given(setting.words(value))
        except ValueError as error:
            self.fail(f"argument {setting.flag}: {error}")
        finally:
            self._parser.source = ""

    def _close(self, key: str) -> str:
        names = [name.replace("_", "-") for name in self._settings]
        close = difflib.get_close_matches(key.replace("_", "-"), names)
        return f"; similar: {', '.join(close)}" if close else "; --help lists them"

    def fail(self, message: str) -> NoReturn:
        """End the process with status 2 and a message."""
        self._parser.error(message)


def with_objects(words: list[str]) -> list[str]:
    """Return a command line in which flags such as `--speculative-config.method=ngram` are one JSON object per flag."""
    kept: list[str] = []
    objects: dict[str, dict[str, Any]] = {}
    remaining = iter(words)
    for word in remaining:
        path, separator, value = word.partition("=")
        flag, dot, key = path.partition(".")
        if not (flag.startswith("--") and dot):
            kept.append(word)
            continue
        *outer, last = key.replace("-", "_").split(".")
        place = objects.setdefault(flag, {})
        for name in outer:
            place = place.setdefault(name, {})
        place[last] = as_json(value if separator else next(remaining, ""))
    return kept + [f"{flag}={json.dumps(value)}" for flag, value in objects.items()]


def as_json(text: str) -> Any:
    """Return a JSON value, or the text that is none."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def bare(hint: Any) -> Any:
    """Return the type of a setting's value, without None: `list` for a list of any kind."""
    kinds = (
        [part for part in get_args(hint) if part is not NoneType] if NoneType in get_args(hint) else [hint]
    )
    return get_origin(kinds[0]) or kinds[0]


def as_bool(value: Any) -> bool:
    """Return the boolean that YAML or an environment variable means. Raises ValueError."""
    text = str(value).lower()
    if text not in TRUE + FALSE:
        raise ValueError(f"{value!r} is neither true nor false")
    return text in TRUE
