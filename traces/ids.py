"""Ids of what is ingested, and which of them there are already: in a few bytes for each, however many there are."""

from __future__ import annotations

import bisect
import hashlib
import json
from collections import Counter
from dataclasses import fields, replace
from typing import Any

import numpy as np

from .store import Store
from .trajectory import Request

_FIELDS = [f.name for f in fields(Request)]
_RECENT = 1 << 19  # numbers held in a set, at a hundred bytes each, before they join the sorted ones


class Numbers:
    """A growing set of whole numbers from 0 to 2^64 − 1."""

    def __init__(self, numbers: np.ndarray[Any, Any] | None = None) -> None:
        self._sorted = np.sort(numbers) if numbers is not None else np.empty(0, np.uint64)
        self._view = self._sorted.data
        self._recent: set[int] = set()

    def __contains__(self, number: int) -> bool:
        if number in self._recent:
            return True
        at = bisect.bisect_left(self._view, number)
        return at < len(self._view) and self._view[at] == number

    def add(self, number: int) -> None:
        """Put a number in."""
        self._recent.add(number)
        if len(self._recent) >= _RECENT:
            recent = np.fromiter(self._recent, np.uint64, len(self._recent))
            # Two sorted runs are merged in linear time.
            self._sorted = np.sort(np.concatenate([self._sorted, np.sort(recent)]), kind="stable")
            self._view = self._sorted.data
            self._recent = set()


class Known:
    """The ids in a store, those that end in a hash: of them the hash."""

    def __init__(self, store: Store) -> None:
        found = store.query(
            "select distinct try_cast('0x' || right(id, 12) as ubigint) n from (select trajectory_id id from "
            "trajectories union all select request_id from requests) where n is not null"
        )
        self._numbers = Numbers(found["n"].to_numpy().astype(np.uint64))

    def __contains__(self, id: str) -> bool:
        return int(id[-12:], 16) in self._numbers

    def add(self, id: str) -> None:
        """Put an id in."""
        self._numbers.add(int(id[-12:], 16))


class RequestIds:
    """Ids of a log's rows: from the row, from the log's beginning, and, for equal rows, from which of them it is."""

    def __init__(self) -> None:
        self._seen = Numbers()
        self._again: Counter[int] = Counter()
        self._log = ""

    def with_id(self, request: Request) -> Request:
        """The request under its id. ValueError for a number that JSON does not have."""
        values = {name: getattr(request, name) for name in _FIELDS}
        row = json.dumps(values | {"id": ""}, allow_nan=False)
        digest = hashlib.sha256(row.encode())
        self._log = self._log or digest.hexdigest()
        content = f"{self._log}/{self._which(int.from_bytes(digest.digest()[:8]))}/{row}"
        return replace(request, id=f"{request.source}-{hashlib.sha256(content.encode()).hexdigest()[:12]}")

    def _which(self, row: int) -> int:
        """Whether this is the first row of its kind, the second, …"""
        if row not in self._seen:
            self._seen.add(row)
            return 1
        self._again[row] += 1
        return 1 + self._again[row]
