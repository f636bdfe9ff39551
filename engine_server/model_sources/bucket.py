"""`s3://bucket/path`: download from an S3 bucket, configured by the variables of AWS's own tools (AWS_REGION, ...).

Without keys in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, the identity of the cloud is used: a web identity, an EKS
pod identity, or the instance's role.
"""

import hashlib
import os
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

from engine_server.contract.cluster.sources.bucket import Bucket
from engine_server.model_sources import store
from engine_server.model_sources.errors import ModelSourceError
from engine_server.model_sources.folder import is_used
from engine_server.model_sources.progress import Progress
from engine_server.model_sources.record import Checksums
from engine_server.model_sources.wanted import Wanted

if TYPE_CHECKING:
    from obstore import GetOptions
    from obstore.store import S3Config, S3Store

PART_BYTES = 16 << 20
CONCURRENT_FILES = 8
MOST_OBJECTS = 10_000
PART_TIMEOUT = timedelta(minutes=5)
CONNECT_TIMEOUT = timedelta(seconds=10)
RETRY_TIMEOUT = timedelta(minutes=1)

_CODE = re.compile(r"<Code>(\w+)</Code>")
_SECRETS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
# The rights that a request may lack, by the codes of S3.
_REMEDIES = {
    "AccessDenied": "s3:ListBucket on the bucket and s3:GetObject on the objects are needed",
    "InvalidAccessKeyId": "the endpoint does not know the access key in AWS_ACCESS_KEY_ID",
    "SignatureDoesNotMatch": "AWS_SECRET_ACCESS_KEY does not belong to AWS_ACCESS_KEY_ID",
    "ExpiredToken": "AWS_SESSION_TOKEN has expired",
    "InvalidToken": "AWS_SESSION_TOKEN is not valid",
    "NoSuchBucket": "there is no such bucket",
    "PermanentRedirect": "the bucket is in another region than AWS_REGION",
    "AuthorizationHeaderMalformed": "the bucket is in another region than AWS_REGION",
}


class Object(NamedTuple):
    """An object of the bucket, and its place below the model's folder."""

    key: str
    relative: str
    size: int
    # The version of the content.
    etag: str


class Part(NamedTuple):
    """A downloaded file under its temporary name."""

    path: Path
    # In hexadecimal digits.
    sha256: str


def fetch_model(source: Bucket, wanted: Wanted) -> Path:
    """Return the folder of the model below a prefix. Raises ModelSourceError."""
    fill_place = partial(fill, source, progress=wanted.progress)
    return wanted.materialize(place(source), str(source), fill_place, can_resume=True)


def fetch_adapter(source: Bucket, check: Callable[[Path, str], Path]) -> Path:
    """Return the folder of the adapter below a prefix. Raises ModelSourceError."""
    fill_place = partial(fill, source, progress=Progress())
    return store.materialize(place(source), str(source), fill_place, can_resume=True, check=check)


def place(source: Bucket) -> Path:
    """Return the cache folder of a model; the same bucket name at another endpoint has another folder."""
    key = hashlib.sha256(f"{_endpoint()} {source}".encode()).hexdigest()
    return store.cache() / "models" / "s3" / f"{Path(source.prefix).name}-{key[:12]}"


def fill(source: Bucket, into: Path, progress: Progress) -> Checksums:
    """Download the model's files into the folder `into`; continue where an interrupted download ended.

    Return the files' checksums. Raises ModelSourceError.
    """
    opened = _open(source)
    with store.step(f"fetching {source} from {_endpoint()}", progress):
        objects = _list(opened, source)
        progress.total = sum(each.size for each in objects)
        fetched = sum(path.stat().st_size for path in into.rglob(".*.part"))
        store.check_space(into, progress.total - fetched, str(source))
        with ThreadPoolExecutor(CONCURRENT_FILES) as pool:
            parts = list(pool.map(lambda each: _fetch(opened, source, each, into), objects))
        for each, part in zip(objects, parts, strict=True):
            part.path.rename(into / each.relative)
        for outdated in into.rglob(".*.part"):  # of objects that were replaced since
            outdated.unlink()
    return Checksums(sha256={each.relative: part.sha256 for each, part in zip(objects, parts, strict=True)})


def _open(source: Bucket) -> "S3Store":
    from obstore.exceptions import BaseError
    from obstore.store import S3Store

    given = {name.lower(): value for name, *_ in Bucket.SECRET if (value := _variable(name))}
    try:
        return S3Store(
            source.bucket,
            config=cast("S3Config", given),
            client_options={
                "allow_http": _endpoint().startswith("http://"),
                "connect_timeout": CONNECT_TIMEOUT,
                "timeout": PART_TIMEOUT,
            },
            retry_config={"max_retries": 5, "retry_timeout": RETRY_TIMEOUT},
        )
    except (BaseError, ValueError) as error:
        raise _failure(source, "", error) from None


def _variable(name: str) -> str:
    """Return a variable, empty if it is not set, without the newline that tools and editors leave in a Secret."""
    return os.environ.get(name, "").strip()


def _endpoint() -> str:
    given = _variable("AWS_ENDPOINT_URL_S3") or _variable("AWS_ENDPOINT_URL")
    region = _variable("AWS_REGION") or _variable("AWS_DEFAULT_REGION") or "us-east-1"
    return given or f"https://s3.{region}.amazonaws.com"


def _list(opened: "S3Store", source: Bucket) -> list[Object]:
    from obstore.exceptions import BaseError

    objects = []
    try:
        for page in opened.list(prefix=source.prefix):
            for meta in page:
                relative = meta["path"].removeprefix(f"{source.prefix}/")
                if is_used(relative):
                    objects.append(Object(meta["path"], relative, meta["size"], meta["e_tag"] or ""))
            if len(objects) > MOST_OBJECTS:
                raise ModelSourceError(f"{source}: there are more than {MOST_OBJECTS} model files there")
    except (BaseError, OSError, ValueError) as error:
        raise _failure(source, "", error) from None
    if not objects:
        raise ModelSourceError(
            f"{source}: the bucket {source.bucket} at {_endpoint()} has no model files there"
        )
    return objects


def _fetch(opened: "S3Store", source: Bucket, wanted: Object, into: Path) -> Part:
    """Return the file with the object's content. Its name has the version, so that no other one is continued.

    It is hashed while it is written; of an interrupted download, what is there is read first.
    """
    from obstore.exceptions import BaseError, PreconditionError

    version = hashlib.sha256(wanted.etag.encode()).hexdigest()[:12]
    target = into / wanted.relative
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}.{version}.part")
    with part.open("a+b") as file:
        file.seek(0)
        digest = hashlib.file_digest(file, "sha256")
        while (start := file.tell()) < wanted.size:
            end = min(wanted.size, start + PART_BYTES)
            try:
                options: GetOptions = {"range": (start, end), "if_match": wanted.etag}
                content = opened.get(wanted.key, options=options).bytes()
            except PreconditionError:
                raise ModelSourceError(f"{source}: {wanted.key} was replaced during the download") from None
            except (BaseError, OSError, ValueError) as error:
                raise _failure(source, wanted.key, error) from None
            file.write(content)
            file.flush()
            os.fsync(file.fileno())  # a size that survives a crash implies its content
            digest.update(content)
        if file.tell() != wanted.size:
            raise ModelSourceError(f"{part}: has {file.tell()} bytes, and {wanted.key} has {wanted.size}")
    return Part(part, digest.hexdigest())


def _failure(source: Bucket, key: str, error: Exception) -> ModelSourceError:
    """Return the error in the user's terms: the address, and what is missing. Keys are never part of it."""
    if isinstance(error, OSError) and error.errno is not None:
        raise error
    text = str(error)
    code = _CODE.search(text)
    if code:
        reason = f"{code[1]}: {_REMEDIES[code[1]]}" if code[1] in _REMEDIES else code[1]
    else:
        reason = text.strip().splitlines()[0]
        for name in _SECRETS:
            if secret := _variable(name):
                reason = reason.replace(secret, "***")
    where = f"the bucket {source.bucket} at {_endpoint()}" + (f", key {key}" if key else "")
    return ModelSourceError(f"{source}: {where}: {reason}")
