"""The interpreter's build in saved measurements."""

import json
import sysconfig
from pathlib import Path

import pytest

from benchmarks.record import save

PGO = "'--prefix=/usr/local' '--enable-optimizations' '--with-lto' 'CFLAGS=-g -O2'"
PLAIN = "'--prefix=/opt/python' '--enable-shared' 'CFLAGS=-g -DX=\"--enable-optimizations\"'"


@pytest.mark.parametrize(("arguments", "pgo"), [(PGO, True), (PLAIN, False), (None, False)])
def test_result_names_the_interpreters_build_and_a_build_without_pgo_is_warned_about(
    arguments: str | None,
    pgo: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sysconfig, "get_config_var", {"CONFIG_ARGS": arguments}.get)

    file = save("streams", {"figures": {}}, tmp_path / "result.json")

    saved = json.loads(file.read_text())
    assert saved["interpreter"] == {"pgo": pgo, "configured": arguments or ""}
    assert ("PGO" in capsys.readouterr().err) is not pgo
