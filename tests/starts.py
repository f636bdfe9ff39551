"""Counts of what the tests of a process start: engines, HTTP servers, API servers, and child processes of any kind."""

import asyncio
import functools
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

import uvloop

ENGINES, SERVERS, API_SERVERS, PROCESSES = KINDS = ("engines", "servers", "api_servers", "processes")
# Classes of which each object is a start, by module: they are patched once the module is imported.
CLASSES = {
    "engine_server.core.engine_core": ("EngineCore", ENGINES),
    "engine_server.server.serving": ("HttpServer", SERVERS),
    "engine_server.router.server": ("Server", SERVERS),
}
# Words of a command line that are a start each, besides that of the process.
COMMANDS = {
    "engine_server.core": (ENGINES,),
    "engine": (ENGINES, SERVERS),
    "router": (SERVERS,),
    "benchmarks.scripted_server": (SERVERS,),
}
API_SERVER = "kube-apiserver"


def count_starts(count: Callable[[Counter[str]], None], spawned: Callable[[int], None]) -> None:
    """Call `count` before each start in this process from now on, and `spawned` with the id of each child process.

    Starts by child processes are not seen, but those that the child's command line names.
    """
    sys.meta_path.insert(0, _Finder(count))  # type: ignore[arg-type]
    _count_commands(count)
    _watch_ids(spawned)


class _Finder:
    """Patches the classes of CLASSES as their modules are imported."""

    def __init__(self, count: Callable[[Counter[str]], None]) -> None:
        self._count = count

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if name not in CLASSES or (spec := PathFinder.find_spec(name, path)) is None or spec.loader is None:
            return None
        class_name, kind = CLASSES[name]
        execute = spec.loader.exec_module

        def execute_and_patch(module: ModuleType) -> None:
            execute(module)
            self._patch(getattr(module, class_name), kind)

        spec.loader.exec_module = execute_and_patch  # type: ignore[method-assign]
        return spec

    def _patch(self, counted: Any, kind: str) -> None:
        create = counted.__init__

        @functools.wraps(create)
        def counting(*args: Any, **kwargs: Any) -> None:
            self._count(Counter([kind]))
            create(*args, **kwargs)

        counted.__init__ = counting


def _count_commands(count: Callable[[Counter[str]], None]) -> None:
    def record(event: str, arguments: tuple[Any, ...]) -> None:
        # The second event is our own, for processes that uvloop starts without Python's subprocess.
        if event in ("subprocess.Popen", "uvloop.spawn"):
            command = arguments[1]
            words = [str(word) for word in ([command] if isinstance(command, str | bytes) else command)]
            kinds = Counter([PROCESSES])
            for word in words:
                kinds.update(COMMANDS.get(word, ()))
            kinds[API_SERVERS] += any(word.endswith(API_SERVER) for word in words[:1])
            count(kinds)

    sys.addaudithook(record)


def _watch_ids(spawned: Callable[[int], None]) -> None:
    create, create_async = subprocess.Popen.__init__, asyncio.create_subprocess_exec

    @functools.wraps(create)
    def watched(self: Any, *args: Any, **kwargs: Any) -> None:
        create(self, *args, **kwargs)
        spawned(self.pid)

    @functools.wraps(create_async)
    async def watched_async(*command: Any, **kwargs: Any) -> Any:
        if isinstance(asyncio.get_running_loop(), uvloop.Loop):
            sys.audit("uvloop.spawn", command[0], command)
        process = await create_async(*command, **kwargs)
        spawned(process.pid)
        return process

    subprocess.Popen.__init__ = watched  # type: ignore[method-assign]
    asyncio.create_subprocess_exec = watched_async
