"""The credentials that engines get."""

import hashlib
import hmac

import pytest

from engine_server.contract.cluster.api import Key
from engine_server.router.callers.account import ANYONE
from engine_server.router.callers.engine_credentials import EngineCredentials
from engine_server.router.routing.directory import Deployment

ROOT = b"root of all"


def line(root: bytes, message: str) -> bytes:
    key = hmac.new(root, message.encode(), hashlib.sha256).hexdigest()
    return f"Authorization: Bearer {key}\r\n".encode()


def test_each_deployment_gets_a_key_of_its_own_derived_from_its_uid(tmp_path):
    file = tmp_path / "root"
    file.write_bytes(ROOT + b"\n")
    keys = EngineCredentials(file)
    one = Deployment(Key("ns", "a"), ("a",), uid="11-22")
    assert keys.lines({}, one, ANYONE) == keys.lines({}, one, ANYONE) == line(ROOT, "11-22")
    # The object was deleted and created again.
    assert keys.lines({}, Deployment(Key("ns", "a"), ("a",), uid="33"), ANYONE) == line(ROOT, "33")
    assert keys.lines({}, Deployment(Key("ns", "b"), ("b",)), ANYONE) == line(ROOT, "ns/b")


def test_first_of_several_root_keys_is_used(tmp_path):
    file = tmp_path / "root"
    file.write_bytes(b"\nnew root\nold root\n")
    assert EngineCredentials(file).lines({}, Deployment(Key("ns", "a"), ("a",), uid="1"), ANYONE) == line(
        b"new root", "1"
    )


def test_there_is_no_key_without_a_file():
    assert EngineCredentials().lines({}, Deployment(Key("ns", "a"), ("a",)), ANYONE) == b""


def test_clients_credentials_reach_only_engines_that_take_them():
    fields = {b"authorization": b"Bearer k", b"x-api-key": b"k"}
    ours, tenants = (Deployment(Key("ns", "a"), ("a",), takes_credentials=takes) for takes in (True, False))
    assert EngineCredentials().lines(fields, ours, ANYONE) == b"authorization: Bearer k\r\nx-api-key: k\r\n"
    assert EngineCredentials().lines(fields, tenants, ANYONE) == b""


def test_the_key_in_a_deployments_own_file_comes_before_the_derived_one_and_the_clients(tmp_path):
    root, own = tmp_path / "root", tmp_path / "own"
    root.write_bytes(ROOT)
    own.write_bytes(b"own-key\n")
    deployment = Deployment(Key("ns", "a"), ("a",), key_file=own)
    for credentials in (EngineCredentials(root), EngineCredentials()):
        lines = credentials.lines({b"x-api-key": b"k"}, deployment, ANYONE)
        assert lines == b"Authorization: Bearer own-key\r\n"


@pytest.mark.parametrize("content", [b"", b"two words", b"two\nlines", b"\xff"])
def test_a_file_that_is_not_one_key_is_an_error_at_the_start(tmp_path, content):
    file = tmp_path / "key"
    file.write_bytes(content)
    with pytest.raises(ValueError, match="key"):
        EngineCredentials().endpoint_keys.load(file)


@pytest.mark.parametrize("content", [None, b"", b" \n"])
def test_a_file_without_a_key_is_an_error_at_the_start(tmp_path, content):
    file = tmp_path / "root"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ValueError):
        EngineCredentials(file)


async def test_follows_changes_of_the_file_and_keeps_the_key_when_it_is_emptied(
    tmp_path, eventually, background, caplog
):
    file = tmp_path / "root"
    file.write_bytes(ROOT)
    keys, deployment = EngineCredentials(file), Deployment(Key("ns", "a"), ("a",), uid="1")
    assert keys.lines({}, deployment, ANYONE) == line(ROOT, "1")
    background(keys.run())
    file.write_bytes(b"another root")
    await eventually(lambda: keys.lines({}, deployment, ANYONE) == line(b"another root", "1"))
    file.write_bytes(b"")
    await eventually(lambda: "it has no key" in caplog.text)
    assert keys.lines({}, deployment, ANYONE) == line(b"another root", "1")
    assert "root" not in caplog.text.replace(str(file), "")
