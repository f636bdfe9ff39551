"""s3://BUCKET/PATH: the objects below a prefix of a bucket."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from engine_server.contract.cluster.sources.source import SecretVariable, Source

_CHARACTER = "[A-Za-z0-9_=+@,:()-]"
# Neither a part of a path is empty nor are two dots next to each other.
_PART = rf"(?:{_CHARACTER}|\.{_CHARACTER})+\.?"
_VARIABLES = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_REGION",
    "AWS_ENDPOINT_URL",
)


@dataclass(frozen=True, slots=True)
class Bucket(Source):
    """The objects of a bucket whose keys begin with `prefix/`."""

    PATTERN = rf"s3://(?P<bucket>[a-z0-9][a-z0-9.-]{{1,61}}[a-z0-9])/(?P<prefix>{_PART}(?:/{_PART})*)/?"
    MODEL_FORMS = ADAPTER_FORMS = "s3://BUCKET/PATH"
    SCHEME = "s3"
    EXPECTED = "a bucket and a path without .. are expected, as in s3://models/llama"
    FETCHED = "s3://"
    # None is required, since the cloud may give the pod an identity.
    SECRET = tuple(SecretVariable(name, name) for name in _VARIABLES)

    bucket: str
    prefix: str

    @classmethod
    def of(cls, found: Mapping[str, str | None]) -> Self | None:
        bucket, prefix = found["bucket"], found["prefix"]
        return cls(bucket, prefix) if bucket and prefix else None

    @property
    def name(self) -> str:
        return self.prefix.rpartition("/")[2]

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}"
