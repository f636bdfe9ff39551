"""Access to the Kubernetes API, with the pod's service account or a kubeconfig."""

import base64
import os
import ssl
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from engine_server.contract.base.authority import authority
from engine_server.router.sources.kubernetes.login_plugin import LoginPlugin

# Where the kubelet mounts the service account of a pod.
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class AccessError(Exception):
    """No usable access to the API; the message says why."""


@dataclass(frozen=True, slots=True)
class Access:
    """URL and credentials of an API server."""

    server: str
    # None for http://.
    tls: ssl.SSLContext | None = None
    token: str | None = None
    # Read for each request, since the kubelet renews it.
    token_file: Path | None = None
    plugin: LoginPlugin | None = None

    async def headers(self) -> dict[str, str]:
        """Return the headers that authenticate a request. Raises OSError or LoginError."""
        token = self.token
        if self.plugin is not None:
            token = await self.plugin.token()
        elif self.token_file is not None:
            token = self.token_file.read_text().strip()
        return {"Authorization": f"Bearer {token}"} if token else {}

    def refused(self, headers: dict[str, str]) -> None:
        """Take note that the API server did not take the credentials of a request with these headers."""
        if self.plugin is not None:
            self.plugin.forget(headers["Authorization"].removeprefix("Bearer "))


def find_access(kubeconfig: Path | None) -> Access:
    """Return the access by `kubeconfig`, else the pod's service account, else $KUBECONFIG, else ~/.kube/config.

    Raises AccessError.
    """
    try:
        if kubeconfig is not None:
            return from_kubeconfig(kubeconfig)
        if "KUBERNETES_SERVICE_HOST" in os.environ and (ACCOUNT / "token").exists():
            return from_account(ACCOUNT)
        named = os.environ.get("KUBECONFIG", "").split(os.pathsep)[0]
        return from_kubeconfig(Path(named) if named else Path.home() / ".kube" / "config")
    except (OSError, ValueError, TypeError, AttributeError, KeyError, yaml.YAMLError) as error:
        raise AccessError(f"the kubeconfig cannot be used: {error}") from None


def from_account(account: Path) -> Access:
    """Return the access of a pod with its service account mounted at `account`."""
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    tls = ssl.create_default_context(cafile=account / "ca.crt")
    return Access(f"https://{authority(host, port)}", tls, token_file=account / "token")


def from_kubeconfig(path: Path) -> Access:
    """Return the access of the current context. Raises AccessError, OSError, ValueError or yaml.YAMLError."""
    config: dict[str, Any] = yaml.safe_load(path.read_text()) or {}
    context = entry(config, "contexts", "context", config.get("current-context"), path)
    cluster = entry(config, "clusters", "cluster", context.get("cluster"), path)
    user = entry(config, "users", "user", context.get("user"), path) if context.get("user") else {}
    if "auth-provider" in user:
        raise AccessError(
            f"{path} has an auth-provider, which Kubernetes 1.26 has removed; use a login plugin (exec)"
        )
    token_file = user.get("tokenFile")
    return Access(
        str(cluster["server"]).rstrip("/"),
        tls_settings(cluster, user, path.parent) if str(cluster["server"]).startswith("https") else None,
        user.get("token"),
        path.parent / token_file if token_file else None,
        LoginPlugin(user["exec"]) if "exec" in user else None,
    )


def entry(config: dict[str, Any], section: str, kind: str, name: object, path: Path) -> dict[str, Any]:
    """Return the content of a named entry in a section of a kubeconfig. Raises AccessError if there is none."""
    for item in config.get(section) or []:
        if item.get("name") == name:
            found: dict[str, Any] = item.get(kind) or {}
            return found
    raise AccessError(f"{path} has no {kind} named {name!r}")


def tls_settings(cluster: dict[str, Any], user: dict[str, Any], folder: Path) -> ssl.SSLContext:
    """Return the TLS settings of a cluster and a user; files are relative to `folder`."""
    authority = material(cluster, "certificate-authority", folder)
    tls = ssl.create_default_context(cadata=authority.decode() if authority else None)
    if cluster.get("insecure-skip-tls-verify"):
        tls.check_hostname = False
        tls.verify_mode = ssl.CERT_NONE
    certificate, key = material(user, "client-certificate", folder), material(user, "client-key", folder)
    if certificate and key:
        with tempfile.NamedTemporaryFile() as both:  # the ssl module reads these from files only
            both.write(certificate + b"\n" + key)
            both.flush()
            tls.load_cert_chain(both.name)
    return tls


def material(section: dict[str, Any], name: str, folder: Path) -> bytes | None:
    """Return a certificate or key, which is inline in base64 or in a file, or None if it is not given."""
    if inline := section.get(f"{name}-data"):
        return base64.b64decode(str(inline))
    if file := section.get(name):
        return (folder / str(file)).read_bytes()
    return None
