"""The sizes of the pages in which objects are listed, by kopf and by relists."""

from dataclasses import dataclass

from llm_operator.control.resources import LLMDEPLOYMENTS
from llm_operator.control.watching.store import Store

PAGE_SIZE = 250
# kopf decodes a page as a whole, and starts a task for each object on it.
KOPF_PAGE_SIZE = 50
# An LLMDeployment has up to 1.5 MB, and up to 25 times as much once kopf has decoded it, a page as a whole.
MOST_LLMDEPLOYMENTS = 25
PAGE_BYTES = 4 << 20


@dataclass(slots=True)
class Pages:
    """The number of LLMDeployments on a page: as many as the largest known one and the API server's speed allow."""

    store: Store
    most: int = MOST_LLMDEPLOYMENTS

    @property
    def limit(self) -> int:
        fitting = PAGE_BYTES // max(1, self.store.largest(LLMDEPLOYMENTS))
        return max(1, min(self.most, fitting))

    def answered(self) -> None:
        """Record that a page was answered: the next one may be larger."""
        self.most = min(MOST_LLMDEPLOYMENTS, self.most + 1)

    def timed_out(self) -> bool:
        """Record that a page was not answered in time; return True if a smaller one may be."""
        limit = self.limit
        self.most = max(1, limit // 2)
        return limit > 1
