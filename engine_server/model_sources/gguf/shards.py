"""The names of the files of a split GGUF file, as gguf-split writes them: NAME-00001-of-00003.gguf."""

import re

SHARD = re.compile(r"(?P<name>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)


def shards(name: str) -> list[str]:
    """Return the names of all files of the model of which `name` is one, by its name or path."""
    found = SHARD.fullmatch(name)
    if found is None:
        return [name]
    count = int(found["count"])
    if not 1 <= int(found["number"]) <= count:
        return [name]
    return [f"{found['name']}-{number:05d}-of-{count:05d}.gguf" for number in range(1, count + 1)]


def some(names: list[str]) -> str:
    """Return the beginning of a list of names."""
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
