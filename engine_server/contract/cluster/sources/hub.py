"""hf://ORG/NAME[@REVISION]: a repository on a hub, or a GGUF file of it; ORG/NAME[@REVISION] for short."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from engine_server.contract.cluster.sources.source import SecretVariable, Source

_NAME = "[A-Za-z0-9_][A-Za-z0-9_.-]*"
# A commit of a repository, by all its digits.
COMMIT = "[0-9a-f]{40}"
# The beginnings of files in repositories.
FILE_PATTERN = "^(hf://)?[A-Za-z0-9_][^:/@]*/[^/@]+/"


@dataclass(frozen=True, slots=True)
class HubRepository(Source):
    """A repository of a model hub; without a revision, its default branch."""

    PATTERN = (
        rf"(?:hf://)?(?P<repository>{_NAME}/{_NAME})(?P<file>(?:/{_NAME})+[.]gguf)?"
        "(?:@(?P<revision>[A-Za-z0-9_./-]+))?"
    )
    MODEL_FORMS = "hf://ORG/NAME[/FILE.gguf][@REVISION], ORG/NAME[@REVISION]"
    ADAPTER_FORMS = "hf://ORG/NAME[@REVISION], ORG/NAME[@REVISION]"
    SCHEME = "hf"
    EXPECTED = "a repository is expected, as in hf://org/name or hf://org/name@revision"
    FETCHED = "hf://|[A-Za-z0-9_][^:]*/"
    SECRET = (SecretVariable("HF_TOKEN", "token", is_required=True),)

    repository: str
    revision: str | None = None
    # The path of a GGUF file in the repository; None: the model is the repository.
    file: str | None = None

    @classmethod
    def of(cls, found: Mapping[str, str | None]) -> Self | None:
        if (repository := found["repository"]) is None:
            return None
        file = found["file"]
        return cls(repository, found["revision"], file.removeprefix("/") if file else None)

    @property
    def name(self) -> str:
        return (self.file or self.repository).rpartition("/")[2].removesuffix(".gguf")

    def __str__(self) -> str:
        file = "" if self.file is None else f"/{self.file}"
        return f"hf://{self.repository}{file}" + ("" if self.revision is None else f"@{self.revision}")
