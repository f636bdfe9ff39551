"""How to reach the Kubernetes API: as the pod's own account, or as a kubeconfig says."""

import base64
import os
import ssl
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class AccessError(Exception):
    """There is no way to the API, and this is why."""


@dataclass(frozen=True, slots=True)
class Access:
    server: str
    tls: ssl.SSLContext | None = None
    token: str | None = None
    token_file: Path | None = None  # read again for each request: kubelet renews it

    def headers(self) -> dict[str, str]:
        token = self.token_file.read_text().strip() if self.token_file else self.token
        return {"Authorization": f"Bearer {token}"} if token else {}


def find_access(kubeconfig: Path | None) -> Access:
    """The given kubeconfig; else the pod's account; else $KUBECONFIG; else the user's own."""
    try:
        if kubeconfig is not None:
            return from_kubeconfig(kubeconfig)
        if "KUBERNETES_SERVICE_HOST" in os.environ and (ACCOUNT / "token").exists():
            return from_account(ACCOUNT)
        named = os.environ.get("KUBECONFIG", "").split(os.pathsep)[0]
        return from_kubeconfig(Path(named) if named else Path.home() / ".kube" / "config")
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise AccessError(f"the kubeconfig cannot be used: {error}") from None


def from_account(account: Path) -> Access:
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    authority = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    tls = ssl.create_default_context(cafile=account / "ca.crt")
    return Access(f"https://{authority}", tls, token_file=account / "token")


def from_kubeconfig(path: Path) -> Access:
    config: dict[str, Any] = yaml.safe_load(path.read_text()) or {}
    context = entry(config, "contexts", "context", config.get("current-context"), path)
    cluster = entry(config, "clusters", "cluster", context.get("cluster"), path)
    user = entry(config, "users", "user", context.get("user"), path) if context.get("user") else {}
    if "exec" in user or "auth-provider" in user:
        raise AccessError(f"{path} asks for a login plugin; give one with a token or a client certificate")
    token_file = user.get("tokenFile")
    return Access(
        str(cluster["server"]).rstrip("/"),
        tls_of(cluster, user, path.parent) if str(cluster["server"]).startswith("https") else None,
        user.get("token"),
        path.parent / token_file if token_file else None,
    )


def entry(config: dict[str, Any], section: str, kind: str, name: object, path: Path) -> dict[str, Any]:
    for item in config.get(section) or []:
        if item.get("name") == name:
            found: dict[str, Any] = item.get(kind) or {}
            return found
    raise AccessError(f"{path} has no {kind} named {name!r}")


def tls_of(cluster: dict[str, Any], user: dict[str, Any], folder: Path) -> ssl.SSLContext:
    """What a kubeconfig says of certificates, given as files (relative to it) or inline in base64."""
    authority = material(cluster, "certificate-authority", folder)
    tls = ssl.create_default_context(cadata=authority.decode() if authority else None)
    if cluster.get("insecure-skip-tls-verify"):
        tls.check_hostname = False
        tls.verify_mode = ssl.CERT_NONE
    certificate, key = material(user, "client-certificate", folder), material(user, "client-key", folder)
    if certificate and key:
        with tempfile.NamedTemporaryFile() as both:  # the ssl module takes these from files alone
            both.write(certificate + b"\n" + key)
            both.flush()
            tls.load_cert_chain(both.name)
    return tls


def material(section: dict[str, Any], name: str, folder: Path) -> bytes | None:
    if inline := section.get(f"{name}-data"):
        return base64.b64decode(str(inline))
    if file := section.get(name):
        return (folder / str(file)).read_bytes()
    return None
