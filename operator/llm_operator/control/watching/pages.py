"""The sizes of the pages in which kopf and relists list the objects of each kind."""

from engine_server.contract.cluster.page_size import PageSize
from llm_operator.kinds import LLMDEPLOYMENTS, Resource

# Objects on a page, at most. kopf starts a task for each object on one.
PAGE_SIZE = 250
KOPF_PAGE_SIZE = 50
# An LLMDeployment has up to 1.5 MB, and up to 25 times as much once kopf has decoded it.
MOST_LLMDEPLOYMENTS = 25
# Objects on the first page, before any size is known.
FIRST_PAGE_SIZE = 25


class Pages:
    """The page sizes by kind."""

    def __init__(self) -> None:
        self._sizes: dict[Resource, PageSize] = {}

    def of(self, resource: Resource) -> PageSize:
        most = MOST_LLMDEPLOYMENTS if resource == LLMDEPLOYMENTS else PAGE_SIZE
        return self._sizes.setdefault(resource, PageSize(most, min(most, FIRST_PAGE_SIZE)))
