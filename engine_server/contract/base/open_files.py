"""The limit of open files, since each connection is one."""

import resource

# Of the open files; the others are for engines, for the API server of Kubernetes, and for logs.
CLIENTS_PERCENT = 80
# The port of pages or of the admin API has this part of the clients' number of connections, beside them.
INTERNAL_PART = 16


def raise_open_files_limit() -> None:
    """Raise the soft limit to the hard limit; the soft limit is 1,024 in many containers."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def most_connections(bound: int) -> int:
    """Return the number of connections that clients may have open: `bound`, or less if the open files are fewer."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return bound if soft == resource.RLIM_INFINITY else max(1, min(bound, soft * CLIENTS_PERCENT // 100))


def most_internal_connections(most: int) -> int:
    """Return the number of connections to an internal port beside `most` connections of clients."""
    return max(1, most // INTERNAL_PART)
