"""The keys file."""

import json

import pytest
import yaml

from engine_server.router.callers.keys import decode_keys, digest_of

SHA = digest_of(b"secret").hex()
OTHER = digest_of(b"other").hex()


def test_reads_all_fields_of_an_entry():
    entry = {
        "name": "team-a",
        "sha256": SHA,
        "models": ["llama", "ns/llama", "ns/*"],
        "requestsPerMinute": 60,
        "tokensPerMinute": 10000,
        "concurrency": 4,
        "priority": -1,
        "cacheScope": "all-of-team",
    }
    for content in (yaml.safe_dump([entry]), json.dumps([entry])):
        (read,) = decode_keys(content.encode())
        assert read.name == "team-a" and read.digest == digest_of(b"secret")
        assert read.models == ("llama", "ns/llama", "ns/*")
        assert (read.requests_per_minute, read.tokens_per_minute, read.concurrency) == (60, 10000, 4)
        assert read.priority == -1 and read.cache_scope == "all-of-team"


def test_everything_is_allowed_that_an_entry_does_not_limit():
    (read,) = decode_keys(json.dumps([{"name": "a", "sha256": SHA.upper()}]).encode())
    assert read.digest == digest_of(b"secret")
    assert read.models is read.requests_per_minute is read.tokens_per_minute is read.concurrency is None


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        ([{"name": "a", "sha256": "secret"}], "sha256"),
        ([{"name": "a"}], "sha256"),
        ([{"name": "a b", "sha256": SHA}], "name"),
        ([{"name": "a", "sha256": SHA, "requestsPerMinute": 0}], "requestsPerMinute"),
        ([{"name": "a", "sha256": SHA, "requests_per_minute": 1}], "requests_per_minute"),
        ([{"name": "a", "sha256": SHA, "models": []}], "models"),
        ([{"name": "a", "sha256": SHA, "priority": 10**18}], "priority"),
        ([{"name": "a", "sha256": SHA, "cacheScope": ""}], "cacheScope"),
        ([{"name": "a", "sha256": SHA, "cacheScope": "team-*"}], "cacheScope"),
        ([{"name": "a", "sha256": SHA, "models": ["*"]}], "NAMESPACE/NAME"),
        ([{"name": "a", "sha256": SHA, "models": ["ns/ll*"]}], "NAMESPACE/NAME"),
        ([{"name": "a", "sha256": SHA}, {"name": "a", "sha256": OTHER}], "'a'"),
        ([{"name": "a", "sha256": SHA}, {"name": "b", "sha256": SHA}], "'b'"),
        ({"keys": []}, "array"),
    ],
)
def test_names_what_is_wrong_in_an_invalid_file(entries, reason):
    with pytest.raises(ValueError, match=reason) as failure:
        decode_keys(json.dumps(entries).encode())
    assert SHA not in str(failure.value)


@pytest.mark.parametrize(
    "content", [b"- name: 'a\n  sha256: fl-topsecret", b"\xff\xfe\xff", b"\x00", b"- a: b: fl-topsecret"]
)
def test_the_error_for_a_file_that_is_not_yaml_does_not_quote_it(content):
    with pytest.raises(ValueError, match="YAML") as failure:
        decode_keys(content)
    assert "topsecret" not in str(failure.value)


def test_an_empty_file_has_no_keys():
    assert decode_keys(b"") == decode_keys(b"[]") == ()
