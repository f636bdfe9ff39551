"""The pods' ServiceAccount."""

from typing import Any

from llm_operator.observed import ChildKey, Observed
from llm_operator.settings import Settings


def test_pods_run_under_an_account_of_their_own_without_a_token(planned: Any, manifest: Any) -> None:
    goal = planned(manifest())

    account = goal.child("ServiceAccount")
    assert goal.pod["serviceAccountName"] == account["metadata"]["name"]
    assert account["automountServiceAccountToken"] is False
    assert goal.pod["automountServiceAccountToken"] is False


def test_the_account_has_the_operators_image_pull_secrets_and_pods_stay_as_they_are(
    planned: Any, manifest: Any
) -> None:
    goal = planned(
        manifest(), settings=Settings(engine_image="engine:1", image_pull_secrets=("registry", "mirror"))
    )

    assert goal.child("ServiceAccount")["imagePullSecrets"] == [{"name": "registry"}, {"name": "mirror"}]
    assert goal.template == planned(manifest()).template


def test_annotations_and_pull_secrets_of_the_spec_are_the_accounts(planned: Any, manifest: Any) -> None:
    given = {"annotations": {"iam.gke.io/gcp-service-account": "m@p"}, "imagePullSecrets": [{"name": "own"}]}
    observed = Observed(default_pull_secrets=("registry",))

    account = planned(manifest(serviceAccount=given), observed).child("ServiceAccount")

    assert account["metadata"]["annotations"] == {"iam.gke.io/gcp-service-account": "m@p"}
    assert account["imagePullSecrets"] == [{"name": "own"}]


def test_pull_secrets_are_by_default_the_operators_and_those_of_the_default_account(
    planned: Any, manifest: Any
) -> None:
    settings = Settings(engine_image="e", image_pull_secrets=("all", "registry"))
    observed = Observed(default_pull_secrets=("registry", "more"))

    account = planned(manifest(), observed, settings).child("ServiceAccount")

    assert account["imagePullSecrets"] == [{"name": "all"}, {"name": "registry"}, {"name": "more"}]


def test_an_empty_list_gives_the_account_no_pull_secrets(planned: Any, manifest: Any) -> None:
    observed = Observed(default_pull_secrets=("registry",))

    account = planned(manifest(serviceAccount={"imagePullSecrets": []}), observed).child("ServiceAccount")

    assert "imagePullSecrets" not in account


def test_the_pull_secret_that_openshift_adds_stays(planned: Any, manifest: Any) -> None:
    existing = planned(manifest()).child("ServiceAccount") | {
        "imagePullSecrets": [{"name": "smollm2-engine-dockercfg-x7k2"}, {"name": "gone"}, {}]
    }
    observed = Observed(children={ChildKey.of(existing): existing}, default_pull_secrets=("registry",))

    account = planned(manifest(), observed).child("ServiceAccount")

    assert account["imagePullSecrets"] == [{"name": "registry"}, {"name": "smollm2-engine-dockercfg-x7k2"}]


def test_the_account_is_no_part_of_the_pod_template(planned: Any, manifest: Any) -> None:
    given = {"annotations": {"a": "b"}, "imagePullSecrets": [{"name": "own"}]}

    assert planned(manifest(serviceAccount=given)).template == planned(manifest()).template
