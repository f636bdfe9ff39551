"""The pods' ServiceAccount. Its token is not mounted."""

from collections.abc import Iterator

from engine_server.contract.cluster import labels
from llm_operator.api.spec import LLMDeployment
from llm_operator.observed import ChildKey, Manifest, Observed
from llm_operator.plan.ownership import child
from llm_operator.settings import Settings


def key(name: str) -> ChildKey:
    return ChildKey("v1", "ServiceAccount", labels.child_name(name))


def plan(deployment: LLMDeployment, observed: Observed, settings: Settings) -> Iterator[Manifest]:
    given = deployment.spec.service_account
    content: Manifest = {"automountServiceAccountToken": False}
    if names := pull_secrets(deployment, observed, settings):
        content["imagePullSecrets"] = [{"name": name} for name in names]
    manifest = child(deployment, key(deployment.name), settings, **content)
    if given.annotations:
        manifest["metadata"]["annotations"] = dict(given.annotations)
    yield manifest


def pull_secrets(deployment: LLMDeployment, observed: Observed, settings: Settings) -> tuple[str, ...]:
    """Return the image pull secrets of the account, by default those of the settings and of the account `default`.

    OpenShift adds a secret of its own to every account, for which it would make another one whenever it is removed.
    """
    chosen = deployment.spec.service_account.image_pull_secrets
    if chosen is None:
        wanted = (*settings.image_pull_secrets, *observed.default_pull_secrets)
    else:
        wanted = tuple(secret.name for secret in chosen)
    account = key(deployment.name)
    listed = names_of(observed.children.get(account, {}))
    added = (name for name in listed if name.startswith(f"{account.name}-dockercfg-"))
    return tuple(dict.fromkeys((*wanted, *added)))


def names_of(account: Manifest) -> tuple[str, ...]:
    """Return the image pull secrets of an account. Kubernetes accepts an entry without a name, and ignores it."""
    return tuple(entry["name"] for entry in account.get("imagePullSecrets", ()) if entry.get("name"))
