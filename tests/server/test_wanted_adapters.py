"""Lists of adapters for this engine's model, and for another one."""

from pathlib import Path

import msgspec
import pytest
from compat.http_text import parse_message
from compat.sample import ADMIN_ROOTS, UID, config_map
from compat.scripted_engine import EngineServer

from engine_server.contract.cluster.adapters import (
    MODEL_VARIABLE,
    AdapterStates,
    WantedAdapter,
    WantedAdapters,
)
from engine_server.contract.cluster.engine_keys import derive_key
from engine_server.server.wanted_adapters import read_adapters_file

OURS, OTHER = "hf://org/llama", "hf://org/mistral"


def list_for(model: str) -> bytes:
    return msgspec.json.encode(WantedAdapters([WantedAdapter("x", "u")], model))


@pytest.mark.parametrize(
    ("own", "listed", "is_served"),
    [(OURS, OURS, True), (OURS, OTHER, False), (OURS, "", True), ("", OTHER, True)],
)
def test_a_file_for_another_model_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str, listed: str, is_served: bool
) -> None:
    monkeypatch.setenv(MODEL_VARIABLE, own)
    file = tmp_path / "adapters.json"
    file.write_bytes(list_for(listed))

    assert read_adapters_file(file) == ({"x": "u"} if is_served else {})


@pytest.mark.parametrize(("listed", "served"), [(OTHER, []), (OURS, ["x"])])
def test_a_request_for_another_model_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listed: str, served: list[str]
) -> None:
    monkeypatch.setenv(MODEL_VARIABLE, OURS)
    keys = tmp_path / "admin"
    keys.write_text(config_map("keys")["admin"])
    head = f"PUT /adapters HTTP/1.1\r\nAuthorization: Bearer {derive_key(ADMIN_ROOTS[0], UID)}\r\n"
    request = head.encode() + b"Content-Type: application/json\r\n\r\n" + list_for(listed)

    answers = map(parse_message, EngineServer(admin_key_file=keys).ask_admin(request))

    for answer in answers:
        assert [each.name for each in AdapterStates.decode(answer.body).adapters] == served
