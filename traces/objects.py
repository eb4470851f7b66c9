"""`Bucket`: a part of an object store, of which five things are asked: get, put, put only if, list, delete.

S3 and what speaks its protocol, through botocore. Credentials come from the environment and the standard AWS files
alone, the address from AWS_ENDPOINT_URL. Every failure is one line for the user.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import IO, Any

from ..errors import UserError

ATTEMPTS = 4  # of one request, with growing pauses between them
_CONNECT_S, _READ_S = 5, 60
_PARALLEL = 16
_DELETED_AT_ONCE = 1000
_DENIED = (401, 403)
_CONFLICTS = (409, 412)


def endpoint() -> str | None:
    """The address of the object store that the environment names; None for Amazon's own."""
    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")


@dataclass(frozen=True, slots=True)
class Found:
    """An object as it was read. `age_s` is by the clock of the store alone."""

    data: bytes
    etag: str
    age_s: float


@dataclass(frozen=True, slots=True)
class Listed:
    """An object as a listing names it; `key` is relative to the bucket's prefix."""

    key: str
    etag: str
    size: int
    age_s: float


@dataclass(frozen=True, slots=True)
class Bucket:
    """The objects of `name` below `prefix`."""

    name: str
    prefix: str

    @classmethod
    def of(cls, uri: str) -> Bucket:
        """The bucket of `s3://NAME/PREFIX`. UserError for another protocol, for credentials in the address, and where
        the packages are missing.
        """
        protocol, _, rest = uri.partition("://")
        if protocol != "s3":
            raise UserError(
                f"store {_without_secrets(uri)!r}: a store is a folder or s3://BUCKET/PREFIX; of other protocols it is "
                "not known how to write an object only if nobody else did, and without that two writers lose rows"
            )
        if "@" in rest or "?" in rest:
            raise UserError("store s3://…: credentials belong in the environment or the AWS files, never in an address")
        name, _, prefix = rest.partition("/")
        if not name:
            raise UserError(f"store {uri!r}: give s3://BUCKET/PREFIX")
        if importlib.util.find_spec("botocore") is None:
            raise UserError(f"store {uri}: this needs more packages: pip install 'kvmill[s3]'")
        return cls(name, prefix.strip("/"))

    def __str__(self) -> str:
        return f"s3://{self.name}/{self.prefix}".rstrip("/")

    def address(self, key: str) -> str:
        """The object as a user would name it."""
        return f"{self}/{key}"

    def get(self, key: str, known: str | None = None) -> Found | None:
        """The object, None if there is none. With the ETag `known` and nothing new, its `data` is empty."""
        extra = {"IfNoneMatch": known} if known else {}
        with self._told(key), _status(304, 404) as answered:
            answer = self._client.get_object(Bucket=self.name, Key=self._whole(key), **extra)
            return Found(answer["Body"].read(), answer["ETag"], _age_s(answer, answer["LastModified"]))
        return Found(b"", known, 0.0) if known and answered.status == 304 else None

    def has(self, key: str) -> bool:
        """Whether there is such an object."""
        with self._told(key), _status(404):
            self._client.head_object(Bucket=self.name, Key=self._whole(key))
            return True
        return False

    def fetch(self, key: str, into: IO[bytes]) -> bool:
        """Write the object's bytes to an open file; False if there is none."""
        with self._told(key), _status(404):
            answer = self._client.get_object(Bucket=self.name, Key=self._whole(key))
            for piece in answer["Body"].iter_chunks(1 << 20):
                into.write(piece)
            return True
        return False

    def tail(self, key: str, most: int) -> bytes | None:
        """The last `most` bytes of an object that is not empty, None if there is none."""
        with self._told(key), _status(404):
            answer = self._client.get_object(Bucket=self.name, Key=self._whole(key), Range=f"bytes=-{most}")
            return answer["Body"].read()
        return None

    def put(self, key: str, data: bytes | IO[bytes]) -> str:
        """Write an object whole, whatever was there; returns its ETag."""
        with self._told(key):
            return self._client.put_object(Bucket=self.name, Key=self._whole(key), Body=data)["ETag"]

    def put_if(self, key: str, data: bytes, etag: str | None) -> str | None:
        """Write an object only if it still has `etag`, or (None) if there is none. None if somebody was faster.

        A request is sent again when its answer was lost, and then finds its own work: that counts as done.
        """
        condition = {"IfMatch": etag} if etag else {"IfNoneMatch": "*"}
        with self._told(key), _status(*_CONFLICTS, *((404,) if etag else ())):
            return self._client.put_object(Bucket=self.name, Key=self._whole(key), Body=data, **condition)["ETag"]
        found = self.get(key)
        return found.etag if found is not None and found.data == data else None

    def list(self, prefix: str = "") -> list[Listed]:
        """All objects whose key begins so: one request for each thousand."""
        out: list[Listed] = []
        more: dict[str, str] = {}
        whole = self._whole(prefix)
        while True:
            with self._told(prefix):
                answer = self._client.list_objects_v2(Bucket=self.name, Prefix=whole, **more)
            for found in answer.get("Contents", ()):
                key = found["Key"][len(whole) - len(prefix) :]
                out.append(Listed(key, found["ETag"], found["Size"], _age_s(answer, found["LastModified"])))
            if not answer.get("IsTruncated"):
                return out
            more = {"ContinuationToken": answer["NextContinuationToken"]}

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; one that is gone already is no failure."""
        for at in range(0, len(keys), _DELETED_AT_ONCE):
            some = [{"Key": self._whole(key)} for key in keys[at : at + _DELETED_AT_ONCE]]
            with self._told(keys[at]):
                answer = self._client.delete_objects(Bucket=self.name, Delete={"Objects": some, "Quiet": True})
            for error in answer.get("Errors", ()):
                raise UserError(f"cannot delete s3://{self.name}/{error['Key']}: {error['Code']}")

    def _whole(self, key: str) -> str:
        return f"{self.prefix}/{key}" if self.prefix else key

    @property
    def _client(self) -> Any:
        return _client(os.getpid(), endpoint())

    @contextmanager
    def _told(self, key: str) -> Iterator[None]:
        """Turns what botocore raises into one line, without anything that was sent."""
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            yield
        except ClientError as error:
            raise UserError(self._words(error.response, key)) from None
        except BotoCoreError as error:
            said = f"{self}: {_said(error)}"
            raise UserError(f"cannot reach {said}; check AWS_ENDPOINT_URL, credentials and network") from None

    def _words(self, response: Mapping[str, Any], key: str) -> str:
        code, status = response["Error"].get("Code", ""), response["ResponseMetadata"]["HTTPStatusCode"]
        if code == "NoSuchBucket":
            return f"no bucket {self.name!r}: make it, or give another with --store or KVMILL_STORE"
        if status in _DENIED:
            return (
                f"{self.address(key)}: access denied ({code}); the credentials of the environment or the AWS files "
                "must be allowed to get, put, list and delete there"
            )
        if code == "NotImplemented":
            return f"{self}: this object store knows no conditional writes, and without them two writers lose rows"
        return f"{self.address(key)}: {code}: {response['Error'].get('Message', 'no words')}"


@dataclass(slots=True)
class _Answered:
    status: int = 0


@contextmanager
def _status(*expected: int) -> Iterator[_Answered]:
    """Answers with such a status are no failures: what follows the block deals with them."""
    from botocore.exceptions import ClientError

    answered = _Answered()
    try:
        yield answered
    except ClientError as error:
        answered.status = int(error.response["ResponseMetadata"]["HTTPStatusCode"])
        if answered.status not in expected or error.response["Error"].get("Code") == "NoSuchBucket":
            raise


@functools.lru_cache(maxsize=4)
def _client(_process: int, endpoint: str | None) -> Any:
    """A client for all threads of a process; a forked one must not use its parent's connections."""
    import botocore.session
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError

    config = Config(
        connect_timeout=_CONNECT_S,
        read_timeout=_READ_S,
        retries={"mode": "standard", "max_attempts": ATTEMPTS},
        max_pool_connections=_PARALLEL,
        # Other servers than Amazon's do not know the newer checksums; the length and the footer are checked anyhow.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    try:
        session = botocore.session.get_session()
        region = session.get_config_variable("region") or "us-east-1"
        return session.create_client("s3", region_name=region, endpoint_url=endpoint, config=config)
    except (BotoCoreError, ValueError) as error:
        raise UserError(f"s3:// cannot be used: {_said(error)}") from None


def _age_s(answer: Mapping[str, Any], modified: datetime) -> float:
    """Seconds since an object was written, by the clock of the server that says both times."""
    said = parsedate_to_datetime(answer["ResponseMetadata"]["HTTPHeaders"]["date"])
    return (said - modified).total_seconds()


def _said(error: Exception) -> str:
    """What went wrong, in one line; it may quote the endpoint, of which name and password are left out."""
    return re.sub(r"://[^/\s]*@", "://", " ".join(str(error).split())).rstrip(".")


def _without_secrets(uri: str) -> str:
    protocol, _, rest = uri.partition("://")
    return f"{protocol}://{rest.rpartition('@')[2].partition('?')[0]}"
