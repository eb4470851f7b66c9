"""Large files that were read to their end before: known again by name, size, time and first bytes, and not read twice.

What is noted of a file are the ids of what it holds. When one of them has left the store, the file is read again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from . import manifest
from .places import LocalFile, Place
from .store import Store

FINISHED = "finished.jsonl"
MOST_IDS = 200_000
_LEAST_BYTES = 16 << 20  # reading a smaller file again takes less than a second
_HEAD_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Finished:
    """One file that was read whole, without a reject. `log`: what a request log is like."""

    mark: str
    format: str
    ids: list[str]
    log: dict[str, Any] | None


def mark_of(place: Place, settings: Mapping[str, Any]) -> str | None:
    """What the file is known by under the same settings and version; None for one that is not worth it."""
    if not isinstance(place, LocalFile) or (place.size or 0) < _LEAST_BYTES:
        return None
    stat = place.path.stat()
    with place.path.open("rb") as file:
        head = hashlib.sha256(file.read(_HEAD_BYTES)).hexdigest()
    code = [manifest.versions()["kvmill"], manifest.git_revision()]  # another version may read it differently
    told = [str(place.path.resolve()), stat.st_size, stat.st_mtime_ns, head, settings, code]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()


def find(store: Store, mark: str) -> Finished | None:
    """What an earlier ingest noted of the file."""
    start = f'{{"mark": "{mark}"'
    for run in store.runs("ingest"):
        path = store.beside(run.run_id, FINISHED)
        if path is None:
            continue
        with path.open(encoding="utf-8") as file:
            line = next((line for line in file if line.startswith(start) and line.endswith("\n")), None)
        if line is not None:
            return Finished(**json.loads(line))
    return None


def note(folder: Path, finished: Finished) -> None:
    """Keep in a run's folder that a file was read to its end; not of one whose ids are too many, or not all known."""
    if len(finished.ids) > MOST_IDS or not all(finished.ids):
        return
    with (folder / FINISHED).open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(finished)) + "\n")
