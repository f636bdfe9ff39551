"""The command `fairlead router key`: a new key, and its entry for the keys file."""

import argparse
import secrets
from pathlib import Path

import msgspec
import yaml

from engine_server.contract.base.command_line import Parser
from engine_server.router.callers.keys import KeyEntry, decode_keys, digest_of

PREFIX = "fl-"
RANDOM_BYTES = 32


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = Parser(
        "fairlead router key",
        description="Create a key. It is printed once, and only its hash is in the entry for the keys file.",
    )
    flag = parser.add_argument
    flag("name", help="the caller's name, which logs and metrics show")
    flag(
        "--models",
        nargs="+",
        metavar="MODEL",
        help="names of models, NAMESPACE/NAME, or NAMESPACE/* (default: all)",
    )
    flag("--requests-per-minute", type=int, metavar="N", help="requests per minute (default: no limit)")
    flag(
        "--tokens-per-minute",
        type=int,
        metavar="N",
        help="of prompts and answers together (default: no limit)",
    )
    flag("--concurrency", type=int, metavar="N", help="requests in flight (default: no limit)")
    flag(
        "--priority",
        type=int,
        default=0,
        metavar="N",
        help="the highest is sent first",
    )
    flag(
        "--cache-scope",
        metavar="NAME",
        help="keys with the same one share cached prompts, * with all others that have it (default: the name)",
    )
    flag(
        "--append",
        type=Path,
        metavar="FILE",
        help="append the entry to this keys file and print only the key",
    )
    return parser


def main(argv: list[str]) -> int:
    """Print a new key and its entry; return the exit status."""
    parser = build_parser()
    flags = parser.parse_args(argv)
    key = PREFIX + secrets.token_urlsafe(RANDOM_BYTES)
    try:
        entry = entry_text(
            KeyEntry(
                name=flags.name,
                sha256=digest_of(key.encode()).hex(),
                models=None if flags.models is None else tuple(flags.models),
                requests_per_minute=flags.requests_per_minute,
                tokens_per_minute=flags.tokens_per_minute,
                concurrency=flags.concurrency,
                priority=flags.priority,
                cache_scope=flags.cache_scope,
            )
        )
        if flags.append is not None:
            append(flags.append, entry)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    print(key)
    if flags.append is None:
        print(entry, end="")
    return 0


def entry_text(entry: KeyEntry) -> str:
    """Return the entry as it stands in a keys file. Raises ValueError if one of its values is not valid."""
    text = str(yaml.safe_dump([msgspec.to_builtins(entry)], sort_keys=False))
    decode_keys(text.encode())
    return text


def append(file: Path, entry: str) -> None:
    """Append an entry to a keys file, or create the file. Raises ValueError if the result is not valid."""
    content = file.read_text() if file.exists() else ""
    if content and not content.endswith("\n"):
        content += "\n"
    try:
        decode_keys((content + entry).encode())
    except ValueError as error:
        raise ValueError(f"{file} with the new entry is not a valid keys file: {error}") from None
    file.write_text(content + entry)
