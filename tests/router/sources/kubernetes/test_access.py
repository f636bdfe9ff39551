"""Access to the API with a kubeconfig or a service account."""

import asyncio
import base64
import shutil
import ssl
import subprocess

import pytest
import yaml
from kubeconfigs import kubeconfig

from engine_server.router.sources.kubernetes.access import (
    AccessError,
    find_access,
    from_account,
    from_kubeconfig,
)


@pytest.mark.parametrize("inline", [True, False])
async def test_authenticates_with_a_client_certificate(tmp_path, inline):
    """Against a TLS server that requires one; the kubeconfig has it inline, as kind writes it, or in files."""

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=tmp_path, check=True, capture_output=True)

    openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "own.key", "-out", "own.crt", "-days", "2",
            "-subj", "/CN=both", "-addext", "subjectAltName=IP:127.0.0.1")  # fmt: skip
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=tmp_path / "own.crt")
    tls.load_cert_chain(tmp_path / "own.crt", tmp_path / "own.key")
    tls.verify_mode = ssl.CERT_REQUIRED
    server = await asyncio.start_server(lambda r, w: w.close(), "127.0.0.1", 0, ssl=tls)
    port = server.sockets[0].getsockname()[1]

    def material(name: str, file: str) -> dict[str, str]:
        data = base64.b64encode((tmp_path / file).read_bytes()).decode()
        return {f"{name}-data": data} if inline else {name: file}

    cluster = {"server": f"https://127.0.0.1:{port}/", **material("certificate-authority", "own.crt")}
    user = {**material("client-certificate", "own.crt"), **material("client-key", "own.key")}
    access = from_kubeconfig(kubeconfig(tmp_path / "config", cluster, user))
    assert access.server == f"https://127.0.0.1:{port}" and await access.headers() == {}
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=access.tls)
    assert await reader.read() == b""
    writer.close()
    server.close()


async def test_reads_a_token_file_for_each_request(tmp_path):
    cluster = {"server": "http://h"}
    access = from_kubeconfig(kubeconfig(tmp_path / "a", cluster, {"token": "t"}))
    assert await access.headers() == {"Authorization": "Bearer t"}
    (tmp_path / "token").write_text("first\n")
    access = from_kubeconfig(kubeconfig(tmp_path / "b", cluster, {"tokenFile": "token"}))
    assert await access.headers() == {"Authorization": "Bearer first"}
    (tmp_path / "token").write_text("second")
    assert await access.headers() == {"Authorization": "Bearer second"}


async def test_uses_the_service_account_of_the_pod(api_server, tmp_path, monkeypatch):
    cluster = yaml.safe_load(api_server.kubeconfig.read_text())["clusters"][0]["cluster"]
    shutil.copy(cluster["certificate-authority"], tmp_path / "ca.crt")
    (tmp_path / "token").write_text("t")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.1.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "6443")
    access = from_account(tmp_path)
    assert access.server == "https://10.1.0.1:6443" and await access.headers() == {
        "Authorization": "Bearer t"
    }


@pytest.mark.parametrize(
    ("user", "changed", "message"),
    [
        ({"exec": {"command": "aws"}}, {}, "missing key 'apiVersion'"),
        ({"auth-provider": {"name": "gcp"}}, {}, "auth-provider"),
        ({}, {"current-context": "other"}, "no context named 'other'"),
        ({}, {"clusters": []}, "no cluster named 'k'"),
        ({"client-certificate": "missing", "client-key": "missing"}, {}, "missing"),
    ],
)
def test_refuses_a_kubeconfig_that_cannot_be_used(tmp_path, user, changed, message):
    with pytest.raises(AccessError, match=message):
        find_access(kubeconfig(tmp_path / "config", {"server": "https://h"}, user, **changed))
