"""The command `fairlead`: the first word selects a part, which is imported only then."""

import importlib
import sys
from typing import NamedTuple


class Command(NamedTuple):
    module: str
    summary: str


COMMANDS = {
    "engine": Command("engine_server.server.command", "serve one model over HTTP; what an engine pod runs"),
    "router": Command("engine_server.router.command", "spread requests over engine replicas"),
    "operator": Command("llm_operator.command", "turn LLMDeployments into pods"),
    "up": Command("llm_local.command", "run LLMDeployments on this machine, without a cluster"),
    "fetch": Command(
        "engine_server.model_sources.command", "fetch a model into a local folder and print its path"
    ),
    "bench": Command("engine_server.bench.command", "measure any OpenAI-compatible server under load"),
    "version": Command("engine_server.version", "print the version; with --verbose what a bug report needs"),
}
# The exit status of a command that SIGINT ended.
INTERRUPTED = 130


def usage() -> str:
    rows = "\n".join(f"  {name:10}{command.summary}" for name, command in COMMANDS.items())
    more = (
        "`fairlead COMMAND --help` and `fairlead help COMMAND` list a command's flags; -V prints the version."
    )
    return f"usage: fairlead COMMAND ...\n\ncommands:\n{rows}\n\n{more}"


def main(argv: list[str] | None = None) -> int:
    """Run the command that `argv` names and return the process's exit status."""
    arguments = sys.argv[1:] if argv is None else argv
    match arguments:
        case [] | ["-h" | "--help" | "help"]:
            print(usage())
            return 0 if arguments else 2
        case ["-V" | "--version", *_]:
            name, rest = "version", []
        case ["help", name, *_]:
            rest = ["--help"]
        case [name, *rest]:
            pass
    if name not in COMMANDS:
        print(f"fairlead: there is no command {name!r}; there are {', '.join(COMMANDS)}", file=sys.stderr)
        return 2
    try:
        run = importlib.import_module(COMMANDS[name].module).main
        return int(run(rest) or 0)
    except KeyboardInterrupt:
        return INTERRUPTED
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in ("engine_server", "llm_operator", "llm_local"):
            raise
        print(f"fairlead {name}: {error}; is this the image without an engine?", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
