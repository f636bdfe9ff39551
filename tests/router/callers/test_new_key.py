"""The command `fairlead router key`."""

import pytest

from engine_server.router.callers.keys import decode_keys, digest_of
from engine_server.router.callers.new_key import main


def test_prints_a_key_and_the_entry_with_its_hash(capsys):
    limits = [
        "--requests-per-minute",
        "60",
        "--tokens-per-minute",
        "1000",
        "--concurrency",
        "2",
        "--priority",
        "3",
    ]
    assert main(["team-a", "--models", "llama", "ns/*", *limits]) == 0
    key, _, entry = capsys.readouterr().out.partition("\n")
    (read,) = decode_keys(entry.encode())
    assert read.digest == digest_of(key.encode()) and key not in entry
    assert (read.name, read.models) == ("team-a", ("llama", "ns/*"))
    assert (read.requests_per_minute, read.tokens_per_minute, read.concurrency, read.priority) == (
        60,
        1000,
        2,
        3,
    )


def test_every_key_is_different(capsys):
    main(["a"])
    main(["a"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len({line for line in lines if "name" not in line}) + 2


def test_appends_entries_to_a_file_and_prints_only_the_key(capsys, tmp_path):
    file = tmp_path / "keys.yaml"
    file.write_text("# of the ml platform\n- {name: first, sha256: '" + "0" * 64 + "'}")
    main(["team-a", "--append", str(file)])
    main(["team-b", "--append", str(file)])
    keys = capsys.readouterr().out.splitlines()
    entries = decode_keys(file.read_bytes())
    assert [entry.name for entry in entries] == ["first", "team-a", "team-b"]
    assert [entry.digest for entry in entries[1:]] == [digest_of(key.encode()) for key in keys]
    assert file.read_text().startswith("# of the ml platform\n")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["a b"], "name"),
        (["a", "--models", "*"], "NAMESPACE/NAME"),
        (["a", "--concurrency", "0"], "concurrency"),
    ],
)
def test_refuses_values_that_a_keys_file_must_not_have(arguments, reason, capsys, tmp_path):
    file = tmp_path / "keys.yaml"
    with pytest.raises(SystemExit) as exit_status:
        main([*arguments, "--append", str(file)])
    assert exit_status.value.code == 2 and not file.exists()
    assert reason in capsys.readouterr().err


def test_refuses_a_name_that_the_file_has_and_leaves_the_file_as_it_was(capsys, tmp_path):
    file = tmp_path / "keys.yaml"
    main(["a", "--append", str(file)])
    before = file.read_text()
    with pytest.raises(SystemExit):
        main(["a", "--append", str(file)])
    assert "two keys have the name 'a'" in capsys.readouterr().err
    assert file.read_text() == before
