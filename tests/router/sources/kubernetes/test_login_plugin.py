"""Kubeconfigs with a login plugin, which is a real program."""

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from kubeconfigs import kubeconfig

from engine_server.router.sources.kubernetes import login_plugin
from engine_server.router.sources.kubernetes.access import Access, from_kubeconfig
from engine_server.router.sources.kubernetes.login_plugin import LoginError

VERSION = "client.authentication.k8s.io/v1"


def access_by(folder: Path, script: str, server: str = "http://h") -> Access:
    """Return the access of a user whose plugin is a shell script, which has the number of its runs as $RUN."""
    counted = f"RUN=$(($(cat {folder}/runs 2>/dev/null || echo 0) + 1)); echo $RUN > {folder}/runs; {script}"
    plugin = {"apiVersion": VERSION, "command": "sh", "args": ["-c", counted], "env": None}
    return from_kubeconfig(kubeconfig(folder / "config", {"server": server}, {"exec": plugin}))


def credential(**status: str) -> str:
    answer = json.dumps({"apiVersion": VERSION, "kind": "ExecCredential", "status": status})
    return f"echo '{answer}' | sed s/RUN/$RUN/"


async def test_a_token_is_asked_for_once_until_it_expires(tmp_path: Path) -> None:
    now = datetime.now(UTC)
    lasting = access_by(
        tmp_path, credential(token="t-RUN", expirationTimestamp=str(now + timedelta(hours=1)))
    )
    assert [await lasting.headers() for _ in range(2)] == [{"Authorization": "Bearer t-1"}] * 2

    brief = access_by(
        tmp_path, credential(token="t-RUN", expirationTimestamp=str(now + timedelta(seconds=30)))
    )
    assert await brief.headers() == {"Authorization": "Bearer t-2"}
    assert await brief.headers() == {"Authorization": "Bearer t-3"}


async def test_another_token_is_asked_for_after_the_api_server_has_refused_one(
    api, follow, tmp_path: Path
) -> None:
    api.token = "t-2"
    await follow(access_by(tmp_path, credential(token="t-RUN"), api.url))
    assert (tmp_path / "runs").read_text() == "2\n"


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo no session >&2; exit 3", "returned 3. b'no session'"),
        ("echo nonsense", "failed to decode"),
        (credential(clientCertificateData="x"), "no token; client certificates are not taken"),
        (credential(token="t", expirationTimestamp="soon"), "soon"),
        (credential(token="a\\nb"), "no text"),
        ("exec sleep 60", "did not end within 1 s"),
    ],
)
async def test_a_plugin_that_gives_no_token_is_an_error_that_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, message: str
) -> None:
    monkeypatch.setattr(login_plugin, "PLUGIN_SECONDS", 1.0)
    with pytest.raises(LoginError, match=message):
        await access_by(tmp_path, script).headers()


def test_a_router_without_a_plugin_does_not_import_the_client_of_kubernetes() -> None:
    program = """
import sys, engine_server.router.command, engine_server.router.sources.kubernetes.source
sys.exit(bool({"kubernetes", "kopf"} & set(sys.modules)))
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
