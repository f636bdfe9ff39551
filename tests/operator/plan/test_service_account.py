"""The pods' ServiceAccount."""

from typing import Any


def test_pods_run_under_an_account_of_their_own_without_a_token(planned: Any, manifest: Any) -> None:
    goal = planned(manifest())

    account = goal.child("ServiceAccount")
    assert goal.pod["serviceAccountName"] == account["metadata"]["name"]
    assert account["automountServiceAccountToken"] is False
    assert goal.pod["automountServiceAccountToken"] is False
