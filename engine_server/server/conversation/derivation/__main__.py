"""The process that renders a chat template: `python -m engine_server.server.conversation.derivation CPU_SECONDS`.

It reads a template from standard input, and writes the facts of its renderings to standard output. A template is
foreign code, if in a sandbox: it may loop, print any amount, or nest until the stack overflows.
"""

import math
import os
import resource
import signal
import sys
import time

import msgspec

from engine_server.engine.conversation.chat_template import ChatTemplate
from engine_server.forks.limits import limit_memory
from engine_server.server.conversation.derivation.facts import facts_of

# Memory beyond that of the imports, many times what any known template takes.
BYTES = 2 << 30


def limit(cpu_seconds: int) -> None:
    """Limit this process's further CPU time and memory, and hide the messages of a crash."""
    seconds = math.ceil(time.process_time()) + cpu_seconds
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    limit_memory(BYTES)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    given = sys.stdin.buffer.read()
    if not given:  # the server needs no facts
        return
    template = msgspec.json.decode(given, type=ChatTemplate)
    limit(int(sys.argv[1]))
    sys.stdout.buffer.write(msgspec.json.encode(facts_of(template)))


if __name__ == "__main__":
    main()
