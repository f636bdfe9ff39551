"""`fairlead engine MODEL`: serve one model over OpenAI's API."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import uvloop

from engine_server.contract.base.bounds import CHOICES
from engine_server.contract.base.logs import configure_logs
from engine_server.contract.base.open_files import raise_open_files_limit
from engine_server.contract.cluster.adapters import MAX_IN_MEMORY, MAX_IN_STEP
from engine_server.engine.engine_args import AsyncEngineArgs
from engine_server.engine.loop.core_process import CoreProcess
from engine_server.server.arguments import ServerArgs
from engine_server.server.settings import ApiSettings
from engine_server.server.sources import Settings
from engine_server.server.vllm_flags import VllmFlags, check_vllm_flags

if TYPE_CHECKING:
    from argparse import Namespace

    from engine_server.server.engine_host import EngineHost
    from engine_server.server.serving import Server

# The default of --max-queue as a multiple of --max-num-seqs.
QUEUED_BATCHES = 8


def main(argv: list[str]) -> int:
    started = time.monotonic()
    settings = Settings(
        "fairlead engine",
        "Serve one model over OpenAI's API.",
        AsyncEngineArgs,
        ApiSettings,
        ServerArgs,
        VllmFlags,
    )
    configure_logs("engine")  # for warnings about the settings
    options = settings.read(argv, os.environ, adapter_defaults)
    args = ServerArgs.of(options)
    configure_logs("engine", args.log_level, args.log_format)
    if not options.model:
        settings.fail("the following arguments are required: model")
    if options.max_queue is None:
        options.max_queue = default_max_queue(options.max_num_seqs)
    raise_open_files_limit()
    try:
        check_vllm_flags(options)
        if args.explain_template:
            return explain(options)
        host, server = start(options, args, started)
    except ValueError as error:
        settings.fail(str(error))
    except OSError as error:
        print(f"fairlead engine: {error}", file=sys.stderr)
        return 1
    status = uvloop.run(server.run())
    if args.uds is not None:
        args.uds.unlink(missing_ok=True)
    if host.thread_runs:
        # The interpreter's exit would wait for the start's thread, which can't be interrupted.
        sys.stderr.flush()
        os._exit(status)
    return status


def explain(options: Namespace) -> int:
    """Print the format of the model's answers. Raises ValueError."""
    from engine_server.server.explain_template import explain_template

    print(explain_template(options, ApiSettings.of(options)), end="")
    return 0


def start(options: Namespace, args: ServerArgs, started: float) -> tuple[EngineHost, Server]:
    """Start the core and open the server's sockets. Raises ValueError for settings, or OSError."""
    core = CoreProcess()
    try:
        # These imports take a second, in which the core has started its own.
        from engine_server.server.engine_host import EngineHost
        from engine_server.server.preparation import prepare

        host = EngineHost(AsyncEngineArgs.from_cli_args(options), ApiSettings.of(options), started, core)
        return host, prepare(host, args)
    except BaseException:
        core.shutdown()
        raise


def adapter_defaults(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the defaults of flags with --adapters-file, which enables every kind of adapter that the model takes."""
    if "adapters_file" not in given:
        return {}
    defaults = {"enable_lora": True, "enable_prompt_adapter": None, "max_prompt_adapters": MAX_IN_MEMORY}
    if not given.keys() & {"max_loras", "max_cpu_loras"}:
        defaults |= {"max_loras": MAX_IN_STEP, "max_cpu_loras": MAX_IN_MEMORY}
    return defaults


def default_max_queue(max_num_seqs: int | None) -> int:
    """Return the default of --max-queue: several batches, and any single request in an idle server."""
    return max(QUEUED_BATCHES * (max_num_seqs or 0), CHOICES.limit)
