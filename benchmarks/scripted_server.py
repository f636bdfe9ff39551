"""`fairlead engine` with the scripted core: `python -m benchmarks.scripted_server RATE MODEL [flags]`."""

import os
import sys

from benchmarks.scripted_core import RATE
from engine_server import cli
from engine_server.engine.loop.core_process import CoreProcess

if __name__ == "__main__":
    os.environ[RATE] = sys.argv[1]
    CoreProcess.module = "benchmarks.scripted_core"
    sys.exit(cli.main(["engine", *sys.argv[2:]]))
