"""From files to the store: read, repair what can be told apart, redact, drop duplicates, keep what was refused.

A record that cannot be read never stops the others: it goes to the run's reject file with its place and the reason.
"""

from __future__ import annotations

import glob
import hashlib
import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TextIO

from ..console import Progress
from ..errors import InputError, UserError
from . import checks, formats, record, samples
from .chain import Chains
from .files import read_file
from .reading import Item
from .redact import Redactor
from .rows import request_row, trajectory_row, turn_rows
from .store import Run, Store
from .trajectory import Request, Trajectory

REJECTS = "rejects.jsonl"
_BATCH = 256
_MAX_KEPT_RAW = 10_000


@dataclass(slots=True)
class FileReport:
    """What became of one file. `given`: the input that named it; `error`: why none of it could be read;
    `chained`: records of single calls that a longer record of the same session holds already.
    """

    path: str
    given: str
    format: str | None = None
    accepted: int = 0
    rejected: int = 0
    duplicates: int = 0
    chained: int = 0
    error: str | None = None


@dataclass(slots=True)
class IngestReport:
    """What became of all files; the JSON answer of `traces ingest`."""

    run: str
    accepted: int = 0
    rejected: int = 0
    duplicates: int = 0
    chained: int = 0
    reject_file: str | None = None
    losses: dict[str, int] = field(default_factory=dict)
    redacted: dict[str, int] = field(default_factory=dict)
    findings: dict[str, int] = field(default_factory=dict)
    reasons: dict[str, int] = field(default_factory=dict)
    files: list[FileReport] = field(default_factory=list)


def expand(paths: Sequence[str | Path]) -> dict[Path, str]:
    """Files behind paths, folders and glob patterns, each once, with the input that named it.

    UserError if an input matches nothing.
    """
    found: dict[Path, str] = {}
    for given in paths:
        path = Path(given).expanduser()
        if path.is_file():
            files = [path]
        elif path.is_dir():
            files = [f for f in sorted(path.rglob("*")) if f.is_file() and not f.name.startswith(".")]
        else:
            files = [Path(name) for name in sorted(glob.glob(str(path), recursive=True)) if Path(name).is_file()]  # noqa: PTH207
        if not files:
            raise UserError(f"no such file: {given}" if not path.is_dir() else f"no files in the folder {given}")
        for file in files:
            found.setdefault(file, str(given))
    return found


def with_id(trajectory: Trajectory) -> Trajectory:
    """The trajectory under an id made from what was said, asked and judged in it."""
    content = record.dump(replace(trajectory, id="", meta={}, losses=(), model=None))
    return replace(trajectory, id=f"{trajectory.source}-{hashlib.sha256(content.encode()).hexdigest()[:12]}")


class _RequestIds:
    """Ids of a log's rows: from the row, from the log's beginning, and, for equal rows, from which of them it is."""

    def __init__(self) -> None:
        self._seen: Counter[str] = Counter()
        self._log = ""

    def with_id(self, request: Request) -> Request:
        row = json.dumps(asdict(replace(request, id="")))
        self._log = self._log or hashlib.sha256(row.encode()).hexdigest()
        self._seen[row] += 1
        content = f"{self._log}/{self._seen[row]}/{row}"
        return replace(request, id=f"{request.source}-{hashlib.sha256(content.encode()).hexdigest()[:12]}")


class _Writer:
    """Collects rows of one run and adds them in segments."""

    def __init__(self, run: Run, redact: bool) -> None:
        self.run = run
        self.redact = redact
        self.redacted: Counter[str] = Counter()
        known = run.store.query("select trajectory_id id from trajectories union select request_id id from requests")
        self.known: set[str] = set(known["id"].to_pylist())
        self.again: list[str] = []
        self.losses: Counter[str] = Counter()
        self.findings: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        self.chains: Chains[FileReport] = Chains()
        self._rows: dict[str, list[dict[str, Any]]] = {}
        self._segments = 0
        self._rejects: TextIO | None = None

    @property
    def reject_file(self) -> Path:
        return self.run.store.folder(self.run.id) / REJECTS

    def take(self, value: Trajectory | Request, ids: _RequestIds, report: FileReport) -> None:
        """Keep a record, or hold it back while a longer record of the same session may follow."""
        if isinstance(value, Trajectory) and value.meta.get("one_call"):
            for held in self.chains.add(value, report):
                self.keep(held.trajectory, ids, held.origin)
        else:
            self.keep(value, ids, report)

    def release(self) -> None:
        """Keep what is still held back."""
        for held in self.chains.rest():
            self.keep(held.trajectory, _RequestIds(), held.origin)
        for origin in self.chains.absorbed:
            origin.chained += 1

    def keep(self, value: Trajectory | Request, ids: _RequestIds, report: FileReport) -> None:
        """Add a record to the run, unless the store, or this run, has it already."""
        redacted: Counter[str] = Counter()
        if isinstance(value, Trajectory):
            if self.redact:
                redactor = Redactor()
                value, redacted = redactor.trajectory(value), redactor.counts
            value = with_id(value)
            found = checks.trajectory_findings(value)
        else:
            value = ids.with_id(value)
            found = checks.request_findings(value)
        if value.id in self.known:
            self.again.append(value.id)
            report.duplicates += 1
            return
        report.accepted += 1
        self.known.add(value.id)
        self.redacted += redacted
        self.findings.update(finding.code for finding in found)
        if isinstance(value, Trajectory):
            self.losses.update(loss.partition(":")[0] for loss in value.losses)
            self._rows.setdefault("trajectories", []).append(trajectory_row(value))
            self._rows.setdefault("turns", []).extend(turn_rows(value))
        else:
            self._rows.setdefault("requests", []).append(request_row(value))
        if sum(map(len, self._rows.values())) >= _BATCH * 16 or len(self._rows.get("trajectories", ())) >= _BATCH:
            self.flush()

    def refuse(self, source: Path, item: Item) -> None:
        """Write a refused record to the reject file."""
        if self._rejects is None:
            self._rejects = self.reject_file.open("w", encoding="utf-8")
        self.reasons[re.sub(r"(?<=\s)\d+", "N", item.reason)] += 1  # places differ, causes repeat
        raw = item.raw if self.reasons.total() <= _MAX_KEPT_RAW else ""
        raw = Redactor().text(raw) if self.redact else raw
        line = {"source": str(source), "line": item.place, "reason": item.reason, "raw": raw}
        self._rejects.write(json.dumps(line) + "\n")

    def flush(self) -> None:
        """Add what was collected as one segment."""
        if self._rows:
            self.run.add(self._rows, key=f"segment-{self._segments}")
            self._segments += 1
            self._rows = {}

    def close(self) -> None:
        if self._rejects is not None:
            self._rejects.close()


def ingest(store: Store, paths: Sequence[str | Path], *, format: str = "auto", redact: bool = True) -> IngestReport:
    """Read files into a run of the store. What is in the store already counts as a duplicate: doing it again is safe.

    UserError for a path that does not exist or an unknown format name, before anything is written. A file whose
    format is not known is reported in `files` with its error; `require_accepted` turns reports into exit codes.
    """
    files = expand(paths)
    if format != "auto":
        formats.named(format)
    config = {"paths": [str(path) for path in paths], "format": format, "redact": redact}
    run = store.begin("ingest", config)
    report = IngestReport(run.id)
    writer = _Writer(run, redact)
    progress = Progress("ingest", len(files), "files")
    try:
        for path, given in files.items():
            report.files.append(_ingest_file(writer, path, given, format))
            progress.step(detail=path.name)
        writer.release()
        writer.flush()
    except BaseException:
        run.finish("incomplete")
        raise
    finally:
        writer.close()
    for name in ("accepted", "rejected", "duplicates", "chained"):
        setattr(report, name, sum(getattr(file, name) for file in report.files))
    report.losses, report.findings = dict(writer.losses), dict(writer.findings)
    report.redacted = dict(writer.redacted)
    report.reasons = dict(writer.reasons.most_common(20))
    report.reject_file = str(writer.reject_file) if writer.reasons else None
    run.annotate(duplicates=sorted(set(writer.again)), accepted=report.accepted, rejected=report.rejected)
    run.finish("complete" if report.accepted + report.duplicates else "incomplete")
    return report


def ingest_samples(store: Store) -> str:
    """The bundled samples as an ingest run, under their own ids; returns the run. Those in the store already stay."""
    chosen = samples.load()
    run = store.begin("ingest", {"paths": ["samples"], "format": "samples", "redact": False})
    known = set(store.query("select trajectory_id id from trajectories")["id"].to_pylist())
    fresh = [trajectory for trajectory in chosen if trajectory.id not in known]
    if fresh:
        turns = [row for trajectory in fresh for row in turn_rows(trajectory)]
        run.add({"trajectories": [trajectory_row(trajectory) for trajectory in fresh], "turns": turns}, key="samples")
    run.annotate(duplicates=sorted(t.id for t in chosen if t.id in known), accepted=len(fresh), rejected=0)
    run.finish()
    return run.id


def _ingest_file(writer: _Writer, path: Path, given: str, format: str) -> FileReport:
    report = FileReport(str(path), given)
    ids = _RequestIds()
    try:
        chosen, items, _ = read_file(path, format)
        report.format = chosen.name
        for item in items:
            if item.value is None:
                writer.refuse(path, item)
                report.rejected += 1
            else:
                writer.take(item.value, ids, report)
    except UserError as error:
        # One unreadable file of many is no reason to drop the others.
        report.error = str(error)
        report.rejected += 1
        writer.refuse(path, Item(0, None, str(error)))
    return report


def require_accepted(report: IngestReport, strict: bool) -> None:
    """InputError if some input had no usable record, or if anything was refused under `strict`."""
    for given in dict.fromkeys(file.given for file in report.files):
        files = [file for file in report.files if file.given == given]
        if not any(file.accepted + file.duplicates + file.chained for file in files):
            error = next((file.error for file in files if file.error), "no record could be accepted")
            more = f" (and {len(files) - 1} more files)" if len(files) > 1 else ""
            raise InputError(f"{error if files[0].error else f'{given}: {error}'}{more}; see {report.reject_file}")
    if strict and report.rejected:
        raise InputError(f"{report.rejected} records were refused (--strict); see {report.reject_file}")
