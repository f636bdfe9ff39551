"""python leash.py PARENT_PID COMMAND ARGUMENT...: the command ends when its parent ends, even by kill -9.

Only Linux tells a process of its parent's death; elsewhere the command just runs. This is run as a file, so
that nothing of ours is imported first.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # survives exec


def main(parent: int, command: list[str]) -> None:
    if sys.platform == "linux":
        if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
        if os.getppid() != parent:  # it died before we asked
            sys.exit(1)
    os.execvp(command[0], command)  # noqa: S606


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
