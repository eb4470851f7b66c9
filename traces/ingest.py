"""From files to the store: read, repair what can be told apart, redact, drop duplicates, keep what was refused.

A record that cannot be read never stops the others: it goes to the run's reject file with its place and the reason.
"""

from __future__ import annotations

import gc
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..console import Progress, printable
from ..errors import InputError, UserError
from . import finished, formats, samples
from .expand import Inputs, expand
from .files import Reading, read_file
from .ids import RequestIds
from .places import Place, shown
from .readers.table import mapping_flaw
from .rejects import REJECTS
from .request_checks import summarise
from .rows import trajectory_row, turn_rows
from .store import Store
from .trajectory import Request
from .writing import Origin, Writer, write_again

_REASONS = 20


@dataclass(slots=True)
class FileReport:
    """What became of one file. `given`: the input that named it; `error`: why none of it could be read;
    `part_of`: the file it was read with; `chained`: records of single calls that a longer record holds already;
    `log`: what a request log is like, see `request_checks`.
    """

    path: str
    given: str
    format: str | None = None
    accepted: int = 0
    rejected: int = 0
    duplicates: int = 0
    chained: int = 0
    part_of: str | None = None
    error: str | None = None
    log: dict[str, Any] | None = None


@dataclass(slots=True)
class IngestReport:
    """What became of all files; the JSON answer of `traces ingest`."""

    run: str
    accepted: int = 0
    rejected: int = 0
    duplicates: int = 0
    chained: int = 0
    reject_file: str | None = None
    rejects_left_out: int = 0
    losses: dict[str, int] = field(default_factory=dict)
    redacted: dict[str, int] = field(default_factory=dict)
    findings: dict[str, int] = field(default_factory=dict)
    reasons: dict[str, int] = field(default_factory=dict)
    hidden_files: int = 0
    links_not_followed: list[str] = field(default_factory=list)
    files: list[FileReport] = field(default_factory=list)


class _Bytes:
    """Progress over all files by their bytes; pipes have none that are known before."""

    def __init__(self, inputs: Inputs) -> None:
        sizes = [place.size for place in inputs]
        known = sum(size for size in sizes if size is not None)
        self._progress = Progress("ingest", max(1, math.ceil(known / 1e6)) if None not in sizes else 0, "MB")
        self._before = self._shown = 0

    def at(self, reading: Reading, name: str) -> None:
        """So much of the file being read is done."""
        self._show(self._before + reading.records.taken, name)

    def done(self, place: Place, last: bool) -> None:
        """A file is done."""
        self._before += place.size or 0
        self._show(self._before, place.name)
        if last and self._progress.total > self._progress.done:
            self._progress.step(self._progress.total - self._progress.done, _on_one_line(place.name))

    def _show(self, bytes_: int, name: str) -> None:
        megabytes = int(bytes_ / 1e6)
        if megabytes > self._shown:
            self._progress.step(megabytes - self._shown, _on_one_line(name))
            self._shown = megabytes


def _on_one_line(name: str) -> str:
    """A file's name for a line that is written over and over: it may hold any character but a slash."""
    return printable(name.replace("\n", "\\n"))


def ingest(
    store: Store,
    paths: Sequence[str | Path],
    *,
    format: str = "auto",
    redact: bool = True,
    columns: Mapping[str, str] | None = None,
) -> IngestReport:
    """Read files into a run of the store. What is in the store already counts as a duplicate: doing it again is safe,
    and goes on where an interrupted run stopped. `columns` says of a table which column is which field of a `Request`.

    UserError for a path that does not exist or an unknown format name, before anything is written. A file whose
    format is not known is reported in `files` with its error; `require_accepted` turns reports into exit codes.
    """
    inputs = expand(paths)
    check_choice(format, columns)
    settings = {"format": format, "redact": redact, "columns": columns}
    run = store.begin("ingest", {"paths": [shown(str(path)) for path in paths], **settings})
    report = IngestReport(run.id, hidden_files=inputs.hidden, links_not_followed=inputs.links)
    writer = Writer(run, redact)
    try:
        with _few_collections():
            _ingest_files(writer, inputs, report, settings)
            writer.release()
        writer.flush()
    except BaseException:
        writer.flush()
        run.finish("incomplete")
        raise
    finally:
        writer.close()
    for name in ("accepted", "rejected", "duplicates", "chained"):
        setattr(report, name, sum(getattr(file, name) for file in report.files))
    report.losses, report.findings = dict(writer.losses), dict(writer.findings)
    report.redacted = dict(writer.redacted)
    report.reasons = dict(writer.rejects.reasons.most_common(_REASONS))
    report.rejects_left_out = writer.rejects.left_out
    report.reject_file = run.home.name_of(REJECTS) if writer.rejects.reasons else None
    counts = {"accepted": report.accepted, "rejected": report.rejected, "redacted": report.redacted}
    run.annotate(again=writer.again, reasons=report.reasons, duplicates=report.duplicates, **counts)
    run.finish("complete" if report.accepted + report.duplicates else "incomplete")
    return report


@contextmanager
def _few_collections() -> Iterator[None]:
    """Python looks for rings of objects more rarely: records are millions of small objects, none of them in a ring."""
    before = gc.get_threshold()
    gc.set_threshold(50_000, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def check_choice(format: str, columns: Mapping[str, str] | None) -> None:
    """UserError for a format that there is not, and for a column map that says too little."""
    if format != "auto":
        formats.named(format)
    flaw = mapping_flaw(columns) if columns else None
    if flaw is not None:
        raise UserError(flaw)


def _ingest_files(writer: Writer, inputs: Inputs, report: IngestReport, settings: Mapping[str, Any]) -> None:
    progress = _Bytes(inputs)
    part_of: dict[Place, Place] = {}
    for number, (place, given) in enumerate(inputs.files.items(), 1):
        file = FileReport(str(place), given)
        report.files.append(file)
        if place not in part_of:
            part_of |= dict.fromkeys(_ingest_file(writer, place, file, settings, progress), place)
        progress.done(place, last=number == len(inputs))
    for place, file in zip(inputs, report.files, strict=True):
        if place in part_of and not file.accepted + file.duplicates + file.chained:
            file.part_of, file.error = str(part_of[place]), None
        elif file.error is not None:
            writer.refuse(Origin(file.path, 0, file), file.error)


def _ingest_file(
    writer: Writer, place: Place, report: FileReport, settings: Mapping[str, Any], progress: _Bytes
) -> list[Place]:
    """Reads one file; returns those that were read with it. One unreadable file is no reason to drop the others."""
    try:
        mark = finished.mark_of(place, settings)
        if mark is not None and _known_whole(writer, mark, report):
            return []
        reading = read_file(place, settings["format"], settings["columns"])
        report.format = reading.format.name
        ids: list[str] = []
        requests = _kept(writer, reading, report, progress, ids)
        if reading.format.kind == "requests":
            report.log = summarise(requests)
        for _ in requests:
            pass
        if mark is not None and not report.rejected and not reading.source.opened:
            finished.note(writer.folder, finished.Finished(mark, report.format, ids, report.log))
        return reading.source.opened
    except UserError as error:
        report.error = writer.told(str(error), report.path)
        return []


def _known_whole(writer: Writer, mark: str, report: FileReport) -> bool:
    """Whether an earlier ingest read the same file to its end, and all of it is still in the store."""
    before = finished.find(writer.run.store, mark)
    if before is None:
        return False
    report.format, report.log = before.format, before.log
    return writer.take_again(before.ids, formats.named(before.format).kind, Origin(report.path, 0, report))


def _kept(
    writer: Writer, reading: Reading, report: FileReport, progress: _Bytes, kept_ids: list[str]
) -> Iterator[Request]:
    """Keeps what a file holds, item by item; passes the requests on."""
    ids = RequestIds()
    for item in reading.items:
        origin = Origin(report.path, item.place, report, kept_ids)
        if item.value is None:
            writer.refuse(origin, item.reason, item.raw)
        else:
            writer.take(item.value, ids, origin)
            if isinstance(item.value, Request):
                yield item.value
        progress.at(reading, reading.source.name)


def ingest_samples(store: Store) -> str:
    """The bundled samples as an ingest run, under their own ids; returns the run. Those in the store already stay."""
    chosen = samples.load()
    run = store.begin("ingest", {"paths": ["samples"], "format": "samples", "redact": False})
    known = set(store.query("select trajectory_id id from trajectories")["id"].to_pylist())
    fresh = [trajectory for trajectory in chosen if trajectory.id not in known]
    if fresh:
        turns = [row for trajectory in fresh for row in turn_rows(trajectory)]
        run.add({"trajectories": [trajectory_row(trajectory) for trajectory in fresh], "turns": turns}, key="samples")
    again = sorted(t.id for t in chosen if t.id in known)
    write_again(run, again)
    run.annotate(again=Counter(trajectories=len(again)), accepted=len(fresh), rejected=0)
    run.finish()
    return run.id


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
