"""A look at files without storing anything: what would be refused or lost, and what is odd in what is left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..errors import UserError
from . import checks
from .conservation import unkept
from .expand import expand
from .files import Reading, read_file
from .ingest import check_choice
from .inputs import records
from .losses import code_of
from .places import Place
from .reading import Record
from .request_checks import summarise
from .trajectory import Request, Trajectory

_EXAMPLES = 10
_CONSERVED_BYTES = 32 << 20  # of larger files it is not looked for what stays behind: all of them would be in memory


def check_files(
    paths: Sequence[str | Path], format: str = "auto", columns: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """`records` and `rejected` in all; per file its format, losses, findings and the first examples in words, and
    what a request log is like. `left_out`: long texts of a file that are in none of its runs, by place.

    UserError if an input matches no file; a file that cannot be read has an `error`, one that was read with another
    is `part_of` it.
    """
    inputs = expand(paths)
    check_choice(format, columns)
    part_of: dict[Place, Place] = {}
    files: dict[Place, dict[str, Any]] = {}
    for place in inputs:
        files[place] = _empty(place)
        if place not in part_of:
            part_of |= dict.fromkeys(_check(place, files[place], format, columns), place)
    for place, with_ in part_of.items():
        if place in files and not files[place]["records"]:
            files[place] |= {"part_of": str(with_), "error": None}
    return {
        "records": sum(file["records"] for file in files.values()),
        "rejected": sum(file["rejected"] for file in files.values()),
        "hidden_files": inputs.hidden,
        "links_not_followed": inputs.links,
        "files": list(files.values()),
    }


def _empty(place: Place) -> dict[str, Any]:
    out: dict[str, Any] = {"path": str(place), "format": None, "records": 0, "rejected": 0, "part_of": None}
    return out | {"error": None, "losses": {}, "findings": {}, "examples": [], "left_out": [], "log": None}


def _check(place: Place, out: dict[str, Any], format: str, columns: Mapping[str, str] | None) -> list[Place]:
    """Fills `out`; returns the files that were read with this one."""
    try:
        reading = read_file(place, format, columns)
        out["format"] = reading.format.name
        runs: list[Trajectory] | None = [] if (place.size or _CONSERVED_BYTES) < _CONSERVED_BYTES else None
        requests = _looked_at(reading, out, runs)
        if reading.format.kind == "requests":
            out["log"] = summarise(requests)
        for _ in requests:
            pass
        if runs:
            left = unkept([found.value for found in records(place) if isinstance(found, Record)], runs)
            out["left_out"] = [asdict(text) | {"path": text.path.removeprefix("[].")} for text in left[:_EXAMPLES]]
        return reading.source.opened
    except UserError as error:
        out["error"] = str(error)
        return []


def _looked_at(reading: Reading, out: dict[str, Any], runs: list[Trajectory] | None) -> Iterator[Request]:
    """Counts what a file holds, item by item; passes the requests on, and keeps the runs in `runs`."""
    losses: Counter[str] = Counter()
    found: Counter[str] = Counter()
    for item in reading.items:
        if item.value is None:
            out["rejected"] += 1
            said = [f"record {item.place} would be rejected: {item.reason}"]
        else:
            if isinstance(item.value, Trajectory):
                losses.update(map(code_of, item.value.losses))
                findings = checks.trajectory_findings(item.value)
                if runs is not None:
                    runs.append(item.value)
            else:
                findings = checks.request_findings(item.value)
            out["records"] += 1
            found.update(finding.code for finding in findings)
            said = [f"record {item.place}, {finding.where}: {finding.text}" for finding in findings[:_EXAMPLES]]
        out["examples"] = [*out["examples"], *said][:_EXAMPLES]
        out["losses"], out["findings"] = dict(losses), dict(found)
        if isinstance(item.value, Request):
            yield item.value
