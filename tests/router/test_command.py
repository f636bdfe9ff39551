"""The command `fairlead router`."""

import pytest

from engine_server.router import command
from engine_server.router.command import main


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([], "no source of endpoints"),
        (["--endpoint", "m"], "NAME[,NAME...]=URL"),
        (["--endpoint", "m=https://h"], "http://HOST:PORT"),
        (["--endpoint", "m=http://h", "--policy", "none"], "--policy"),
        (["--endpoint", "m=http://h", "--prefix-chars", "0"], "--prefix-chars"),
        (["--endpoint", "m=http://h", "--peer", "h:9090"], "http://HOST:PORT"),
        (["--endpoint", "m=http://h", "--keys-file", "/not/there"], "/not/there: No such file"),
        (["--endpoint", "m=http://h", "--engine-key-file", "/dev/null"], "/dev/null: it has no key"),
        (["--endpoint", "m=http://h", "--endpoint-key-file", "/dev/null"], "/dev/null: it has no key"),
        (["--endpoint", "m=http://h", "--ready-path", "health"], "begins with /"),
        (["--endpoint", "m=http://h", "--forward-header", "a b"], "'a b' is no name of a header field"),
        (["--endpoint", "m=http://h", "--forward-header", "Authorization"], "--forward-credentials"),
        (["--endpoint", "m=http://h", "--forward-header", "Origin"], "Origin is never forwarded"),
        (["--kubernetes", "--kubeconfig", "/not/there"], "kubeconfig"),
    ],
)
def test_refuses_invalid_flags(capsys, flags, words):
    with pytest.raises(SystemExit) as left:
        main(flags)
    assert left.value.code == 2 and words in capsys.readouterr().err


def test_has_a_command_for_keys(capsys):
    assert main(["key", "team-a"]) == 0
    assert "name: team-a" in capsys.readouterr().out


def test_has_as_many_places_for_connections_as_fit_into_its_memory(monkeypatch):
    places = []

    async def serve(settings, *_):
        places.append(settings.limits.connections)

    monkeypatch.setattr(command, "memory_limit", lambda: 1024 * 1024)
    monkeypatch.setattr(command, "serve", serve)
    monkeypatch.setattr(command, "configure_logs", lambda *_: None)
    assert main(["--endpoint", "m=http://h"]) == 0
    assert places == [64]
