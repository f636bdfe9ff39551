"""How programs start Python modules."""

import sys


def module_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module in this interpreter.

    The working folder, which may be somebody else's repository, is not on the module search path (`-P`).
    """
    return [sys.executable, "-P", "-m", module, *arguments]
