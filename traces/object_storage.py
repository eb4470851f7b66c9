"""A store below s3://BUCKET/PREFIX, laid out as in a folder: a folder copied there, or back, is the same store.

A segment is written whole, under a name of its own, before a manifest lists it; manifests are swapped by conditional
puts.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from ..errors import UserError
from . import cached, manifest
from .manifest import RunInfo
from .object_home import ObjectHome, seen_manifest
from .objects import Bucket, Listed, endpoint
from .redact_key import KEY_FILE, fresh_key
from .tables import SCHEMAS

_AT_ONCE = 8  # requests


@dataclass(frozen=True, slots=True)
class ObjectStorage:
    """The objects below `bucket`; `shelf` is where this machine keeps copies of them."""

    bucket: Bucket
    shelf: Path

    @classmethod
    def of(cls, uri: str) -> ObjectStorage:
        """The store at an address. Nothing is asked of the object store yet."""
        bucket = Bucket.of(uri)
        mark = hashlib.sha256(f"{endpoint() or ''} {bucket}".encode()).hexdigest()[:16]
        return cls(bucket, cached.cache_home() / "objects" / mark)

    def __str__(self) -> str:
        return str(self.bucket)

    def home(self, run_id: str) -> ObjectHome:
        """The objects of a run."""
        return ObjectHome(self.bucket, run_id, self.shelf)

    def homes(self) -> Iterator[ObjectHome]:
        """One listing for all of them."""
        for run_id, found in groupby(self._listed(), key=lambda listed: listed.key.split("/")[1]):
            yield ObjectHome(self.bucket, run_id, self.shelf, list(found))

    def infos(self) -> list[RunInfo]:
        """One listing, and one request for each manifest that this process has not seen as it is now."""
        listed = [found for found in self._listed() if re.fullmatch(rf"runs/[^/]+/{manifest.NAME}", found.key)]
        read = self._parallel(lambda found: seen_manifest(self.bucket, found.key, found.etag), listed)
        return [info for info in read if info is not None]  # None: removed since the listing

    def ready(self, runs: Sequence[RunInfo], tables: Iterable[str]) -> None:
        """Fetch what is not here yet, and forget what these runs, all of the store, do not list any more."""
        homes = {info.run_id: self.home(info.run_id) for info in runs}
        cached.forget(
            self.shelf, {homes[info.run_id].shelf(info).name: {entry.path for entry in info.files} for info in runs}
        )
        wanted = [(info, entry) for info in runs for entry in info.files if entry.table in tables]
        missing = [(info, entry) for info, entry in wanted if not homes[info.run_id].copied(info, entry)]
        if missing:
            self._parallel(lambda one: homes[one[0].run_id].path(*one), missing)
            cached.bound(self.shelf.parent)

    def tables_for(self, sql: str) -> tuple[str, ...]:
        """Those that the question names: a view over another one cannot be meant."""
        return tuple(name for name in SCHEMAS if re.search(rf"\b{name}\b", sql, re.IGNORECASE))

    def key(self) -> bytes:
        """An object that whoever may read the store can read."""
        found = self.bucket.get(KEY_FILE)
        if found is None:
            fresh = fresh_key()
            if self.bucket.put_if(KEY_FILE, fresh, None) is not None:
                return fresh
            found = self.bucket.get(KEY_FILE)
        if found is None:
            raise UserError(f"{self.bucket.address(KEY_FILE)} was deleted at this moment; try again")
        return found.data.strip()

    def desk(self) -> Path:
        """A folder below the cache, of this machine alone."""
        return cached.cache_home() / "desks" / self.shelf.name

    def _listed(self) -> list[Listed]:
        # Keys come sorted from S3 itself, but not from everything that speaks its protocol.
        found = sorted(self.bucket.list("runs/"), key=lambda listed: listed.key)
        return [listed for listed in found if listed.key.count("/") >= 2]

    def _parallel(self, work: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        if len(items) < 2:
            return list(map(work, items))
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            return list(pool.map(work, items))
