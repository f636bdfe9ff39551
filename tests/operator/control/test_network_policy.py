"""NetworkPolicies of engines, against a real API server, and the operator's flag for them."""

from pathlib import Path
from typing import Any

import pytest
from llm_operator import command
from waiting import until

PEERS = "- podSelector: {matchLabels: {app: router}}\n"


def test_policies_follow_the_flag_of_the_operator(
    world: Any, manifest: Any, start_operator: Any, tmp_path: Path
) -> None:
    account = world.service_account()
    flags = (f"--namespace={world.namespace}", f"--lease-namespace={world.namespace}")
    peers = tmp_path / "peers.yaml"
    peers.write_text(PEERS)
    fencing = start_operator(account, *flags, f"--network-peers-file={peers}")

    world.apply(manifest("a"))

    until(lambda: world.condition("a", "Ready"))
    policy = world.get("networkpolicy", "a-engine")
    (rule,) = policy["spec"]["ingress"]
    assert rule["from"] == [{"podSelector": {"matchLabels": {"app": "router"}}}]
    assert fencing.stop() == 0

    start_operator(account, *flags)

    until(lambda: not world.list("networkpolicy"))


@pytest.mark.parametrize(
    ("content", "words"), [("[]", "length >= 1"), ("- router", "Expected `object`"), ("- {a: [", "parsing")]
)
def test_a_wrong_file_of_peers_is_refused_at_start(
    content: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    peers = tmp_path / "peers.yaml"
    peers.write_text(content)

    with pytest.raises(SystemExit):
        command.main(["--engine-image=engine:1", f"--network-peers-file={peers}"])

    printed = capsys.readouterr().err
    assert str(peers) in printed
    assert words in printed


def test_a_missing_file_of_peers_is_refused_at_start(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["--engine-image=engine:1", "--network-peers-file=/nowhere/peers.yaml"])

    assert "/nowhere/peers.yaml" in capsys.readouterr().err
