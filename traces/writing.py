"""Nouns into the rows of one ingest run: under their ids, redacted, each once, in segments of bounded size."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TextIO

from . import checks, record
from .chain import Chains
from .finished import MOST_IDS
from .ids import Known, RequestIds
from .losses import code_of
from .reading import Item
from .redact import Redactor
from .rejects import Rejects
from .rows import request_row, trajectory_row, turn_rows
from .store import Run
from .trajectory import Request, Trajectory

AGAIN = "duplicates.txt"
_SEGMENT_BYTES = 32 << 20  # of rows held in memory
_ROW_BYTES, _BLOCK_BYTES = 1000, 40
_SESSIONS = 10_000
_NOT_KNOWN_YET = ""  # the id of a record that may still become part of a longer one


class Counts(Protocol):
    """What is counted of one file."""

    accepted: int
    rejected: int
    duplicates: int
    chained: int


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a noun comes from. `ids` collects those of all that was kept from there."""

    source: str
    place: int
    counts: Counts
    ids: list[str] = field(default_factory=list)


class Writer:
    """Collects rows of one run and adds them in segments; what cannot be kept goes to the reject file."""

    def __init__(self, run: Run, redact: bool) -> None:
        self.run = run
        self.redacted: Counter[str] = Counter()
        self.losses: Counter[str] = Counter()
        self.findings: Counter[str] = Counter()
        self.again: Counter[str] = Counter()
        self.chains: Chains[Origin] = Chains()
        self.folder = run.workspace()
        self._redactor = Redactor(run.store.storage.key()) if redact else None
        self.rejects = Rejects(self.folder, self._redactor)
        self._known = Known(run.store)
        self._again_path = self.folder / AGAIN
        self._again_file: TextIO | None = None
        self._rows: dict[str, list[dict[str, Any]]] = {}
        self._bytes = 0
        self._segments = 0
        self._session = functools.lru_cache(_SESSIONS)(self._redacted_session)

    def take(self, value: Trajectory | Request, ids: RequestIds, origin: Origin) -> None:
        """Keep a record, or hold it back while a longer record of the same session may follow."""
        if isinstance(value, Request):
            self._keep_request(value, ids, origin)
        elif value.meta.get("one_call"):
            origin.ids.append(_NOT_KNOWN_YET)
            for held in self.chains.add(value, origin):
                self._keep(held.trajectory, held.origin)
            self._count_absorbed()
        else:
            self._keep(value, origin)

    def take_again(self, ids: Sequence[str], table: str, origin: Origin) -> bool:
        """Count what a file holds as known, unless something of it is not."""
        if not all(map(self._known.__contains__, ids)):
            return False
        for id in ids:
            self._is_new(id, table, origin)
        return True

    def release(self) -> None:
        """Keep what is still held back."""
        for held in self.chains.rest():
            self._keep(held.trajectory, held.origin)

    def refuse(self, origin: Origin, reason: str, raw: str = "") -> None:
        """Count a record that cannot be kept, and write it to the reject file."""
        origin.counts.rejected += 1
        self.rejects.add(origin.source, Item(origin.place, None, reason, raw))

    def told(self, error: str, path: str) -> str:
        """What may be printed of an error: it quotes the file, whose own path stays."""
        kept = path if error.startswith(path) else ""
        return error if self._redactor is None else kept + self._redactor.text(error[len(kept) :])

    def flush(self) -> None:
        """Add what was collected as one segment."""
        rows, self._rows, self._bytes = self._rows, {}, 0
        if rows:
            self._segments += 1
            self.run.add(rows, key=f"segment-{self._segments}")

    def close(self) -> None:
        """End the files beside the rows, and keep them."""
        self.rejects.close()
        if self._again_file is not None:
            self._again_file.close()
        self.run.home.keep()

    def _keep(self, trajectory: Trajectory, origin: Origin) -> None:
        if self._redactor is not None:
            self._redactor.counts.clear()
            trajectory = self._redactor.trajectory(trajectory)
        try:
            id, line = record.sealed(trajectory)
        except ValueError as error:  # half characters, NaN: a reader found them in text inside the record
            self.refuse(origin, f"it cannot be kept: {error}")
            return
        if not self._is_new(id, "trajectories", origin):
            return
        trajectory = replace(trajectory, id=id)
        if self._redactor is not None:
            self.redacted += self._redactor.counts
        self.findings.update(finding.code for finding in checks.trajectory_findings(trajectory))
        self.losses.update(map(code_of, trajectory.losses))
        self._add("trajectories", trajectory_row(trajectory, line), len(line))
        for row in turn_rows(trajectory):
            self._add("turns", row, _ROW_BYTES)
        self._flush_if_full()

    def _keep_request(self, request: Request, ids: RequestIds, origin: Origin) -> None:
        if request.session is not None:
            request = replace(request, session=self._session(request.session))
        try:
            request = ids.with_id(request)
        except ValueError as error:
            self.refuse(origin, f"it cannot be kept: {error}")
            return
        if not self._is_new(request.id, "requests", origin):
            return
        self.findings.update(finding.code for finding in checks.request_findings(request))
        self._add("requests", request_row(request), _ROW_BYTES + _BLOCK_BYTES * len(request.prefix_blocks or ()))
        self._flush_if_full()

    def _redacted_session(self, session: str) -> str:
        return session if self._redactor is None else self._redactor.text(session)

    def _is_new(self, id: str, table: str, origin: Origin) -> bool:
        if len(origin.ids) <= MOST_IDS:
            origin.ids.append(id)
        if id not in self._known:
            self._known.add(id)
            origin.counts.accepted += 1
            return True
        origin.counts.duplicates += 1
        self.again[table] += 1
        if self._again_file is None:
            self._again_file = self._again_path.open("w", encoding="utf-8")
        self._again_file.write(id + "\n")
        return False

    def _add(self, table: str, row: dict[str, Any], size: int) -> None:
        self._rows.setdefault(table, []).append(row)
        self._bytes += size

    def _count_absorbed(self) -> None:
        while self.chains.absorbed:
            self.chains.absorbed.pop().counts.chained += 1

    def _flush_if_full(self) -> None:
        if self._bytes >= _SEGMENT_BYTES:
            self.flush()


def write_again(run: Run, ids: Iterable[str]) -> None:
    """Say beside a run's rows which ids it found in the store already."""
    with (run.workspace() / AGAIN).open("w", encoding="utf-8") as file:
        file.writelines(id + "\n" for id in ids)
    run.home.keep()
