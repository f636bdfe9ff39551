"""The limit of open files, since each connection is one."""

import resource


def raise_open_files_limit() -> None:
    """Raise the soft limit to the hard limit; the soft limit is 1,024 in many containers."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
