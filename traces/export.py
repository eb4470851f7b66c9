"""Trajectories out of the store as files that other programs read, and what each of them loses on the way."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from ..console import Progress
from ..errors import UserError, unknown
from .readers import aiperf as aiperf_reader
from .readers import atif as atif_reader
from .reading import Record
from .select import stream
from .store import Store
from .trajectory import Trajectory
from .writers import aiperf, atif
from .writers.lost import lost

_NO_NAME = re.compile(r"[^A-Za-z0-9._-]")


@dataclass(frozen=True, slots=True)
class Writer:
    """One format to write. `loses`: codes of `writers.lost.LOST` that a run may lose in it; `values`: its JSON values;
    `back`: the run read from them again, None if none is; `in_folder`: whether a folder may hold a file per run.
    """

    title: str
    loses: tuple[str, ...]
    values: Callable[[Trajectory], Iterable[dict[str, Any]]]
    back: Callable[[list[dict[str, Any]]], Trajectory | None]
    in_folder: bool


def _from_atif(values: list[dict[str, Any]]) -> Trajectory | None:
    return next(atif_reader.read(values[0]))


def _from_aiperf(values: list[dict[str, Any]]) -> Trajectory | None:
    items = aiperf_reader.sessions(Record(n, value) for n, value in enumerate(values, 1))
    return next((item.value for item in items if isinstance(item.value, Trajectory)), None)


WRITERS = {
    "atif": Writer(
        "ATIF 1.7, one document a run", atif.LOSES, lambda run: [atif.document(run)], _from_atif, in_folder=True
    ),
    "aiperf": Writer("AIPerf mooncake_trace, one row a call", aiperf.LOSES, aiperf.rows, _from_aiperf, in_folder=False),
}


@dataclass(slots=True)
class Exported:
    """What was written; the JSON answer of `traces export`. `lost` counts runs by code of `writers.lost.LOST`."""

    to: str
    out: str
    exported: int = 0
    bytes: int = 0
    lost: dict[str, int] = field(default_factory=dict)
    trajectories: list[dict[str, Any]] = field(default_factory=list)


def export(store: Store, spec: str, to: str, out: Path, force: bool = False) -> Exported:
    """Write the trajectories of `spec` to a folder, one file each, or to one file that ends in `.jsonl`.

    Each file is there whole or not at all. UserError for an unknown format, if a file is there already and not
    `force`, or as of `select`.
    """
    if to not in WRITERS:
        raise unknown("export format", to, WRITERS)
    writer = WRITERS[to]
    one_file = out.suffix == ".jsonl"
    if not one_file and not writer.in_folder:
        raise UserError(f"--out {out}: {to} is one file of JSON lines; give a name that ends in .jsonl")
    if out.is_dir() if one_file else out.is_file():
        kind, other = ("folder", "file") if one_file else ("file", "folder")
        raise UserError(f"--out {out} is a {kind}; give a {other}")
    ids, runs = stream(store, spec)
    paths = dict(zip(ids, itertools.repeat(out) if one_file else (out / name for name in _names(ids)), strict=False))
    there = next((path for path in paths.values() if path.exists()), None)
    if there is not None and not force:
        raise UserError(f"{there} is there already; give --force to replace it, or another --out")
    (out.parent if one_file else out).mkdir(parents=True, exist_ok=True)
    done = Exported(to, str(out))
    counts: Counter[str] = Counter()
    progress = Progress("export", len(ids), "trajectories")
    with contextlib.ExitStack() as stack:
        shared = stack.enter_context(_atomic(out)) if one_file else None
        for run in runs:
            values = list(writer.values(run))
            with contextlib.nullcontext(shared) if shared else _atomic(paths[run.id]) as file:
                done.bytes += _write(file, values)
            codes = _lost(writer, run, values)
            counts.update(codes)
            done.trajectories.append({"id": run.id, "file": paths[run.id].name, "lost": list(codes)})
            progress.step()
    done.exported, done.lost = len(done.trajectories), dict(counts)
    return done


def _lost(writer: Writer, run: Trajectory, values: list[dict[str, Any]]) -> tuple[str, ...]:
    back = writer.back(values)
    return ("turns",) if back is None else lost(run, back)


def _write(file: TextIO, values: Iterable[dict[str, Any]]) -> int:
    """One JSON a line; the bytes that it takes."""
    size = 0
    for value in values:
        line = json.dumps(value, ensure_ascii=False, allow_nan=False) + "\n"
        file.write(line)
        size += len(line.encode())
    return size


def _names(ids: Iterable[str]) -> Iterator[str]:
    """A file name per id: an id may hold anything that a source wrote into it, a name may not."""
    used: Counter[str] = Counter()
    for id in ids:
        name = _NO_NAME.sub("_", id).lstrip(".")[:150] or "run"
        used[name] += 1
        yield f"{name}.json" if used[name] == 1 else f"{name}~{used[name]}.json"


@contextlib.contextmanager
def _atomic(path: Path) -> Iterator[TextIO]:
    """A file that takes its name when it is whole; nothing is left of one that never was."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with unfinished.open("w", encoding="utf-8") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
