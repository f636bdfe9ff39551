"""The LLMDeployments whose replicas have another pod template than this operator would render for their spec.

An upgrade keeps templates, with the engine's image; an administrator decides when they are replaced.
"""

from dataclasses import dataclass, field

from engine_server.contract.cluster import labels
from engine_server.contract.cluster.api import Key
from llm_operator.api.schema import SpecError
from llm_operator.api.spec import parse
from llm_operator.observed import Manifest, Observed
from llm_operator.plan.pod.pods import pod_template
from llm_operator.plan.pod.template_record import text_of
from llm_operator.settings import Settings


@dataclass(frozen=True, slots=True)
class OutdatedTemplates:
    """Renders once for each spec and each template, since a rendering takes about as long as a reconcile."""

    settings: Settings
    # The generation, the hash of the record, and the result.
    known: dict[Key, tuple[int, str, bool]] = field(default_factory=dict)

    def has(self, observed: Observed) -> bool | None:
        """Return True for one whose template is outdated; None before there is a Deployment."""
        annotations = observed.workload(observed.key.name).get("metadata", {}).get("annotations", {})
        recorded = annotations.get(labels.POD_TEMPLATE_ANNOTATION)
        if recorded is None:
            return None
        state = observed.generation, annotations.get(labels.RECORD_HASH_ANNOTATION, "")
        last = self.known.get(observed.key)
        if last is None or last[:2] != state:
            last = self.known[observed.key] = (*state, is_outdated(recorded, observed.subject, self.settings))
        return last[2]

    def forget(self, key: Key) -> None:
        """Forget an LLMDeployment that was deleted."""
        self.known.pop(key, None)


def is_outdated(recorded: str, subject: Manifest, settings: Settings) -> bool:
    """Return True if the recorded template differs from the one that its LLMDeployment would have now, if any."""
    try:
        return text_of(pod_template(parse(subject), settings)) != recorded
    except SpecError:
        return True
