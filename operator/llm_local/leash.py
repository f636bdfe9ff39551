"""python leash.py PARENT_PID COMMAND ARGUMENT...: run a command that is killed when its parent ends.

Only Linux notifies a process of its parent's end; elsewhere the command runs without. This is run as a file, so that
no package has to be imported first.
"""

import ctypes
import os
import signal
import sys

# Survives exec.
PR_SET_PDEATHSIG = 1


def main(parent: int, command: list[str]) -> None:
    if sys.platform == "linux":
        if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
        if os.getppid() != parent:
            # The parent ended before the call above.
            sys.exit(1)
    os.execvp(command[0], command)  # noqa: S606


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
