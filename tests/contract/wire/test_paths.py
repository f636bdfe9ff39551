"""The paths of models, which the server serves and the router forwards."""

from pathlib import Path

import pytest

from engine_server.contract.wire.paths import MODEL_PATHS

GUIDE = (Path(__file__).parents[3] / "docs" / "server.md").read_text()


@pytest.mark.parametrize("path", sorted(MODEL_PATHS))
def test_guide_to_the_server_has_each_path_in_its_table(path: str) -> None:
    rows = [line.split("|")[1] for line in GUIDE.splitlines() if line.startswith("| `POST ")]
    assert any(f"`{path}`" in row or f"`POST {path}`" in row for row in rows)
