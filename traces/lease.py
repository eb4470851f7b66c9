"""One writing process per run of an object store: an object that its holder renews, and others take once it is old.

How old it is says the store's own clock alone. A holder that was stopped for too long finds out at its next write. The
lease only keeps writers out of each other's way: that no row is lost rests on the manifest's conditional writes.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import secrets
import socket
import threading
import time
from dataclasses import dataclass, field

from ..errors import UserError
from .objects import Bucket

NAME = "lease.json"
SECONDS = 60.0  # without a renewal, until others may take it
RENEWING = "kvmill-leases"  # the thread that does it
_MARGIN_S = 2.0  # times of objects are whole seconds
_FREE = b'{"owner": null}'


@dataclass(slots=True)
class Lease:
    """The lease that this process holds on one run."""

    bucket: Bucket
    key: str
    etag: str
    renewed: float
    mark: str
    process: int = field(default_factory=os.getpid)
    guard: threading.Lock = field(default_factory=threading.Lock)

    def renew(self) -> bool:
        """Write it again; False if another process has taken it meanwhile."""
        with self.guard:
            now = time.monotonic()
            etag = self.bucket.put_if(self.key, _record(self.mark), self.etag) or self._again()
            if etag is None:
                return False
            self.etag, self.renewed = etag, now
            return True

    def _again(self) -> str | None:
        """Renew it where it was renewed before without an answer: it is ours, but not as this process knows it."""
        found = self.bucket.get(self.key)
        if found is None or _said(found.data, "lease") != self.mark:
            return None
        return self.bucket.put_if(self.key, _record(self.mark), found.etag)

    def release(self) -> None:
        """Let others have it at once."""
        with self.guard:
            self.bucket.put_if(self.key, _FREE, self.etag)


_held: dict[str, Lease] = {}
_guard = threading.Lock()
_renewing: threading.Thread | None = None


def acquire(bucket: Bucket, key: str) -> bool:
    """Take the lease for this process, or find that it has it still. False if another process writes the run."""
    lease = _mine(bucket, key)
    if lease is not None:
        if time.monotonic() - lease.renewed < SECONDS / 2 or lease.renew():
            return True
        _forget(lease)
        return False
    found = bucket.get(key)
    if found is not None and _holder(found.data) is not None and found.age_s <= SECONDS + _MARGIN_S:
        return False
    now, mark = time.monotonic(), secrets.token_hex(8)
    etag = bucket.put_if(key, _record(mark), found and found.etag)
    if etag is None:
        return False
    _keep(Lease(bucket, key, etag, now, mark))
    return True


def holds(bucket: Bucket, key: str) -> bool:
    """Whether this process holds the lease, as far as it knows."""
    return _mine(bucket, key) is not None


def holder(bucket: Bucket, key: str) -> str | None:
    """Who holds the lease, in words; None if it is free or too old."""
    found = bucket.get(key)
    owner = None if found is None else _holder(found.data)
    if found is None or owner is None or found.age_s > SECONDS + _MARGIN_S:
        return None
    left = max(1, round(SECONDS + _MARGIN_S - found.age_s))
    return f"{owner} (if that is dead, the run is free in {left} s)"


def release(bucket: Bucket, key: str) -> None:
    """Give the lease back."""
    lease = _mine(bucket, key)
    if lease is not None:
        _forget(lease)
        lease.release()


def _mine(bucket: Bucket, key: str) -> Lease | None:
    lease = _held.get(bucket.address(key))
    return lease if lease is not None and lease.process == os.getpid() else None


def _record(mark: str) -> bytes:
    # Never the same twice, so that every renewal has an ETag of its own.
    owner = f"process {os.getpid()} of {socket.gethostname()}"
    return json.dumps({"owner": owner, "lease": mark, "mark": secrets.token_hex(8)}).encode()


def _holder(data: bytes) -> str | None:
    return _said(data, "owner", "a process that left a damaged lease")


def _said(data: bytes, key: str, damaged: str | None = None) -> str | None:
    try:
        return json.loads(data)[key]
    except (ValueError, KeyError, TypeError):
        return damaged


def _keep(lease: Lease) -> None:
    global _renewing  # noqa: PLW0603 (one thread for all leases of a process)
    with _guard:
        _held[lease.bucket.address(lease.key)] = lease
        if _renewing is None or not _renewing.is_alive():
            _renewing = threading.Thread(target=_renew_all, name=RENEWING, daemon=True)
            _renewing.start()


def _forget(lease: Lease) -> None:
    with _guard:
        if _held.get(lease.bucket.address(lease.key)) is lease:
            del _held[lease.bucket.address(lease.key)]


def _renew_all() -> None:
    """Renew every lease well before its end, for as long as there is one."""
    global _renewing  # noqa: PLW0603 (as in `_keep`)
    while True:
        time.sleep(SECONDS / 3)
        with _guard:
            mine = [lease for lease in _held.values() if lease.process == os.getpid()]
        for lease in mine:
            # The next write of the run tells the user what is wrong, and a short failure may be over by then.
            with contextlib.suppress(UserError):
                lease.renew()
        with _guard:
            if not _held:
                _renewing = None  # before anybody who takes a lease from now on asks whether it lives
                return


@atexit.register
def _release_all() -> None:
    """A process that ends frees its runs, as it would give back the locks of files."""
    for lease in list(_held.values()):
        if lease.process == os.getpid():
            with contextlib.suppress(UserError):
                lease.release()


def _after_fork() -> None:
    """A child holds nothing, and has none of its parent's threads."""
    global _guard, _renewing
    _guard, _renewing = threading.Lock(), None
    _held.clear()


os.register_at_fork(after_in_child=_after_fork)
