"""Settings that the server refuses before it starts."""

import re
import resource
import socket
from pathlib import Path
from typing import Any

import pytest
from loopbacks import both_families

from engine_server.engine.engine_args import AsyncEngineArgs
from engine_server.server.arguments import ServerArgs
from engine_server.server.command import adapter_defaults, main
from engine_server.server.engine_host import EngineHost
from engine_server.server.listeners import listen_on_port
from engine_server.server.preparation import prepare
from engine_server.server.serving import http_server
from engine_server.server.settings import ApiSettings
from engine_server.server.sources import Settings


def refusal(**settings: Any) -> str:
    with pytest.raises(ValueError) as refused:
        prepare(EngineHost(AsyncEngineArgs(), ApiSettings(), 0.0), ServerArgs(port=0, **settings))
    return str(refused.value)


def test_key_file_that_is_missing_is_named(tmp_path: Path) -> None:
    assert "none can't be read: No such file" in refusal(api_key_file=tmp_path / "none")


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.1", "::", "0", "example.org"])
def test_admin_api_without_a_key_is_refused_on_reachable_addresses(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FAIRLEAD_ADMIN_KEY", raising=False)
    assert "takes a loopback address" in refusal(enable_admin=True, admin_host=host, admin_port=0)


@pytest.mark.parametrize("variables", [{}, {"FAIRLEAD_ADMIN_KEY": "secret"}])
def test_admin_api_starts_on_loopback_or_with_a_key(
    variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FAIRLEAD_ADMIN_KEY", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    host = "0.0.0.0" if variables else "127.0.0.1"
    args = ServerArgs(port=0, enable_admin=True, admin_host=host, admin_port=0)
    server = prepare(EngineHost(AsyncEngineArgs(), ApiSettings(), 0.0), args)
    assert len(server.sites) == 2
    for site in server.sites:
        site.listener.close()


@both_families
def test_engine_and_admin_api_listen_on_the_addresses_of_both_families(
    loopback: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAIRLEAD_ADMIN_KEY", "secret")
    # As in pods.
    args = ServerArgs(port=0, enable_admin=True, admin_host="0", admin_port=0)
    server = prepare(EngineHost(AsyncEngineArgs(), ApiSettings(), 0.0), args)
    for site in server.sites:
        with site.listener:
            socket.create_connection((loopback, site.listener.getsockname()[1])).close()


@pytest.mark.parametrize(("given", "seconds"), [({}, 620), ({"idle_timeout": 7}, 7)])
def test_idle_connections_are_kept_for_longer_than_load_balancers_keep_them_or_as_configured(
    given: dict[str, int], seconds: int
) -> None:
    server = prepare(EngineHost(AsyncEngineArgs(), ApiSettings(), 0.0), ServerArgs(port=0, **given))
    (site,) = server.sites
    site.listener.close()
    assert http_server(site).config.timeout_keep_alive == seconds


def test_admin_api_is_off_by_default() -> None:
    server = prepare(EngineHost(AsyncEngineArgs(), ApiSettings(), 0.0), ServerArgs(port=0))
    (site,) = server.sites
    site.listener.close()


@pytest.mark.parametrize(
    ("flags", "enabled", "limits"),
    [
        ([], (False, False), (1, None, 1)),
        (["--adapters-file=a"], (True, None), (8, 32, 32)),
        (["--adapters-file=a", "--enable-lora", "--max-loras=40"], (True, None), (40, None, 32)),
        (["--adapters-file=a", "--max-cpu-loras=4", "--max-prompt-adapters=2"], (True, None), (1, 4, 2)),
        (["--adapters-file=a", "--no-enable-lora", "--enable-prompt-adapter"], (False, True), (8, 32, 32)),
    ],
)  # fmt: skip
def test_a_file_of_adapters_changes_the_defaults_of_flags_that_are_not_given(
    flags: list[str], enabled: tuple[bool, bool | None], limits: tuple[int, int | None, int]
) -> None:
    settings = Settings("fairlead engine", "", AsyncEngineArgs, ApiSettings)

    args = AsyncEngineArgs.from_cli_args(settings.read(["a-model", *flags], {}, adapter_defaults))

    assert (args.enable_lora, args.enable_prompt_adapter) == enabled
    assert (args.max_loras, args.max_cpu_loras, args.max_prompt_adapters) == limits


def test_wrong_flag_ends_the_command_with_a_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("max-nodel-len: 3\n")
    with pytest.raises(SystemExit, match="2"):
        main(["a-model", f"--config={config}"])
    message = capsys.readouterr().err
    assert re.search(r"config\.yaml has the key 'max-nodel-len'.*max-model-len", message)


def test_port_in_use_ends_the_command_with_a_message(capsys: pytest.CaptureFixture[str]) -> None:
    with listen_on_port("127.0.0.1", 0, "http") as listener:
        port = listener.getsockname()[1]
        assert main(["a-model", "--host=127.0.0.1", f"--port={port}"]) == 1
    assert f"fairlead engine: can't listen on 127.0.0.1:{port}" in capsys.readouterr().err


def test_connections_are_bounded_where_open_files_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    monkeypatch.setattr(resource, "getrlimit", lambda _: unlimited)
    server = prepare(EngineHost(AsyncEngineArgs(), ApiSettings(), 0.0), ServerArgs(port=0))
    (site,) = server.sites
    site.listener.close()
    assert site.connections == 65_536
