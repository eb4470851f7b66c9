"""Where one run lies in an object store: its objects, its lease, and this machine's copies of them."""

from __future__ import annotations

import hashlib
import secrets
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import UserError
from . import cached, lease, manifest, segments, views
from .leftovers import REMOVED
from .manifest import FileEntry, RunInfo
from .objects import Bucket, Listed

GRACE_S = 3600.0  # that an object may wait for the manifest that will list it
_TAIL_BYTES = 64 << 10
_seen: dict[str, tuple[str, RunInfo]] = {}  # of this process: address → ETag and what it says
_trusted: set[str] = set()  # stores that were seen to heed conditions


def seen_manifest(bucket: Bucket, key: str, etag: str | None = None) -> RunInfo | None:
    """The manifest at `key`, None if there is none. Read again only if it is not `etag`, or has changed."""
    where = bucket.address(key)
    known = _seen.get(where)
    if known is not None and known[0] == etag:
        return known[1]
    found = bucket.get(key, known and known[0])
    if found is None:
        _seen.pop(where, None)
        return None
    if known is None or found.etag != known[0]:
        known = (found.etag, manifest.decode(found.data, where))
        _seen[where] = known
    return known[1]


class ObjectHome:
    """The objects of one run. `listed`: what a listing has just said of them; later questions ask again."""

    def __init__(self, bucket: Bucket, run_id: str, shelf: Path, listed: list[Listed] | None = None) -> None:
        self._bucket = bucket
        self._run_id = run_id
        self._shelf = shelf
        self._folder = f"runs/{run_id}"
        self._manifest = f"{self._folder}/{manifest.NAME}"
        self._lease = f"{self._folder}/{lease.NAME}"
        self._given = listed
        self._work: tempfile.TemporaryDirectory[str] | None = None

    def __str__(self) -> str:
        return self._bucket.address(self._folder)

    @property
    def id(self) -> str:
        """The run's id."""
        return self._run_id

    def exists(self) -> bool:
        """Whether the manifest is there, be it damaged."""
        if self._given is not None:
            return any(listed.key == self._manifest for listed in self._given)
        return self._bucket.has(self._manifest)

    def found(self) -> bool:
        """Whether there is any object."""
        return bool(self._listed())

    def read(self) -> RunInfo:
        """What the manifest says now."""
        info = seen_manifest(self._bucket, self._manifest)
        if info is None:
            raise UserError(f"no manifest {self._bucket.address(self._manifest)}: the run was removed")
        return info

    def swap(self, before: RunInfo | None, after: RunInfo) -> bool:
        """One conditional put, under the ETag that `before` was read with."""
        where, etag = self._bucket.address(self._manifest), None
        if before is not None:
            if where not in _seen or _seen[where][1] != before:
                self.read()
            etag, now = _seen[where]
            if now != before:
                return False
        data = manifest.encode(after)
        new = self._bucket.put_if(self._manifest, data, etag)
        if new is None:
            return False
        _seen[where] = (new, manifest.decode(data, where))
        if before is None:
            self._require_conditions(data)
        return True

    def _require_conditions(self, data: bytes) -> None:
        """UserError if the store takes a put that must fail: nothing would keep writers apart then."""
        if str(self._bucket) in _trusted:
            return
        if self._bucket.put_if(self._manifest, data + b"\n", None) is not None:
            self.release()
            self.clear()
            raise UserError(
                f"{self._bucket}: this object store does not heed conditional writes, and without them two writers "
                "lose rows; use another one, or a folder"
            )
        _trusted.add(str(self._bucket))

    def acquire(self) -> bool:
        """Take or renew the lease."""
        return lease.acquire(self._bucket, self._lease)

    def holds(self) -> bool:
        """Whether this process has the lease."""
        return lease.holds(self._bucket, self._lease)

    def writer(self) -> str | None:
        """Whose lease it is."""
        return lease.holder(self._bucket, self._lease)

    def release(self) -> None:
        """Give the lease back."""
        lease.release(self._bucket, self._lease)

    def file_name(self, table: str, generation: int) -> str:
        """Never the same twice, also for two writers that both take themselves for the only one."""
        return f"{table}.{generation}-{secrets.token_hex(8)}.parquet"

    def write(self, name: str, parts: Iterable[pa.Table], schema: pa.Schema) -> tuple[int, int]:
        """Write the file here, then the object whole."""
        with tempfile.TemporaryDirectory(prefix="kvmill-") as folder:
            path = Path(folder) / name
            rows = segments.write(path, parts, schema, self.id)
            with path.open("rb") as file:
                self._bucket.put(f"{self._folder}/{name}", file)
            return rows, path.stat().st_size

    def shelf(self, info: RunInfo) -> Path:
        """Where copies of the run's files lie. A run that was removed and begun again under its name has another."""
        return self._shelf / f"{info.run_id}{cached.MARK}{hashlib.sha256(info.created_at.encode()).hexdigest()[:8]}"

    def copied(self, info: RunInfo, entry: FileEntry) -> bool:
        """Whether there is a copy, which counts as used then."""
        return cached.copy(self.shelf(info) / entry.path, entry.bytes, lambda _: False)

    def path(self, info: RunInfo, entry: FileEntry) -> Path:
        """A copy of the object."""
        path = self.shelf(info) / entry.path
        if not cached.copy(path, entry.bytes, self._fetch(entry.path)):
            raise views.missing(self.name_of(entry.path), info.run_id)
        return path

    def problem(self, info: RunInfo, entry: FileEntry) -> str | None:
        """Missing, of another size, or with other rows than the manifest says. Reads the footer alone."""
        where = self.name_of(entry.path)
        tail = self._bucket.tail(f"{self._folder}/{entry.path}", min(_TAIL_BYTES, entry.bytes))
        if tail is None:
            return f"missing file {where}"
        sizes = {listed.key: listed.size for listed in self._given or ()}
        size = sizes.get(f"{self._folder}/{entry.path}", entry.bytes)
        if size != entry.bytes:
            return f"torn file {where}: {size} bytes instead of {entry.bytes}"
        try:
            rows = pq.read_metadata(pa.BufferReader(tail)).num_rows
        except (OSError, pa.ArrowException):
            try:  # a footer that is longer than most
                rows = pq.read_metadata(self.path(info, entry)).num_rows
            except (OSError, pa.ArrowException) as error:
                return f"torn file {where}: {error}"
        return None if rows == entry.rows else f"file {where} holds {rows} rows instead of {entry.rows}"

    def drop(self, names: Sequence[str]) -> int:
        """Delete objects, and this machine's copies of them."""
        if names:
            self._bucket.delete([f"{self._folder}/{name}" for name in names])
            for name in names:
                for path in self._shelf.glob(f"{self.id}{cached.MARK}*/{name}"):
                    path.unlink(missing_ok=True)
        return len(names)

    def unlisted(self, info: RunInfo) -> list[str]:
        """Parquet objects that have waited longer than anybody takes to list them."""
        known = {entry.path for entry in info.files}
        names = [listed.key.rpartition("/")[2] for listed in self._listed() if listed.age_s > GRACE_S]
        return [name for name in names if name.endswith(".parquet") and name not in known]

    def left_behind(self) -> bool:
        """Without a manifest, and nothing new for a while."""
        return not self.exists() and all(listed.age_s > GRACE_S for listed in self._listed())

    def holds_rows(self) -> bool:
        """Parquet objects whose manifest is gone, though nobody removed the run."""
        names = [listed.key.rpartition("/")[2] for listed in self._listed()]
        return REMOVED not in names and any(name.endswith(".parquet") for name in names)

    def retire(self) -> None:
        """Say that the run is removed, then delete its manifest."""
        self._bucket.put(f"{self._folder}/{REMOVED}", b"{}")
        self._bucket.delete([self._manifest])
        _seen.pop(self._bucket.address(self._manifest), None)

    def clear(self) -> int:
        """Delete every object, and this machine's copies."""
        keys = [listed.key for listed in self._bucket.list(f"{self._folder}/")]
        self._bucket.delete(keys)
        self._given = []
        _seen.pop(self._bucket.address(self._manifest), None)
        cached.forget_run(self._shelf, self.id)
        return sum(1 for key in keys if key != self._lease)

    def workspace(self) -> Path:
        """A folder that is gone when this process is."""
        if self._work is None:
            self._work = tempfile.TemporaryDirectory(prefix="kvmill-")
        return Path(self._work.name)

    def keep(self) -> None:
        """Upload the workspace, and empty it."""
        if self._work is None:
            return
        for path in sorted(Path(self._work.name).iterdir()):
            with path.open("rb") as file:
                self._bucket.put(f"{self._folder}/{path.name}", file)
        self._work.cleanup()
        self._work = None

    def beside(self, name: str) -> Path | None:
        """A copy of the object, which never changes once it is there."""
        path = self.shelf(self.read()) / name
        if not path.exists() and not cached.copy(path, -1, self._fetch(name)):
            return None
        return path

    def name_of(self, name: str) -> str:
        """Its address."""
        return self._bucket.address(f"{self._folder}/{name}")

    def _fetch(self, name: str) -> cached.Fetch:
        def fetch(file: IO[bytes]) -> bool:
            return self._bucket.fetch(f"{self._folder}/{name}", file)

        return fetch

    def _listed(self) -> list[Listed]:
        return self._bucket.list(f"{self._folder}/") if self._given is None else self._given
