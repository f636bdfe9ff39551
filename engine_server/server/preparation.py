"""The server as its settings describe it: applications, keys, certificates and sockets."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from engine_server.contract.base.open_files import most_connections, most_internal_connections
from engine_server.server.application import admin_application, build_application
from engine_server.server.http.api_keys import ApiKeys
from engine_server.server.http.file_watch import FileWatch
from engine_server.server.http.tls import Tls
from engine_server.server.listeners import listen, listen_on_port
from engine_server.server.serving import Server, Site
from engine_server.server.shutdown import Shutdown
from engine_server.server.sources import ADMIN_KEY
from engine_server.shared.hosts import hosts_of, is_loopback

if TYPE_CHECKING:
    from engine_server.server.arguments import ServerArgs
    from engine_server.server.engine_host import EngineHost

# Of clients of the API: each takes some KiB too.
MOST_CONNECTIONS = 65_536


def prepare(host: EngineHost, args: ServerArgs) -> Server:
    """Read keys and certificates, and open the sockets. Raises ValueError for settings, or OSError."""
    args.check()
    keys = ApiKeys(args.api_key or (), args.api_key_file)
    watches = [FileWatch(keys.files, keys.reload)]
    tls = None
    if args.tls_files is not None:
        tls = Tls(args.tls_files)
        watches.append(FileWatch(args.tls_files.paths, tls.reload))
    admin_keys = None
    if args.enable_admin:
        admin_keys = ApiKeys([os.environ.get(ADMIN_KEY, "")], args.admin_key_file)
        if not admin_keys.required and not is_loopback(args.admin_host):
            raise ValueError(
                f"--admin-host is {args.admin_host}, which other machines reach; without --admin-key-file or "
                f"{ADMIN_KEY} it takes a loopback address"
            )
        watches.append(FileWatch(admin_keys.files, admin_keys.reload))
    app, gate = build_application(host, args, keys)
    connections = most_connections(MOST_CONNECTIONS)
    sites = [Site(app, listen(args), tls, connections, args.idle_timeout)]
    if admin_keys is not None:
        listener = listen_on_port(args.admin_host, args.admin_port, args.scheme, "admin API ")
        admin = admin_application(host, admin_keys, hosts_of(args.admin_host, args.allow_host or ()))
        sites.append(Site(admin, listener, tls, most_internal_connections(connections)))
    return Server(
        host, gate, sites, watches, Shutdown(gate, args.drain_timeout, args.drain_grace, host.shut_down)
    )
