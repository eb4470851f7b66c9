"""What becomes of real files: every trace file of a folder, read, and the page that says so.

`kvmill bench formats --data FOLDER` ingests each file by itself into a store that is thrown away: accepted, rejected
and why, turns, calls, losses, and how much of the file's long texts its trajectories hold. `--write` renews
docs/formats.md and the figures; `--from-figures` writes the page from the last ones.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import pkgutil
import tempfile
from pathlib import Path
from typing import Any

from kvmill.benchmarks.pages.formats import page
from kvmill.console import note, table
from kvmill.errors import UserError
from kvmill.traces import readers, record
from kvmill.traces.conservation import characters_of, unkept
from kvmill.traces.expand import expand
from kvmill.traces.formats import FORMATS
from kvmill.traces.ingest import ingest
from kvmill.traces.inputs import records
from kvmill.traces.reading import Record
from kvmill.traces.store import Store

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "formats.md"
FIGURES = ROOT / "benchmarks" / "results" / "formats.json"
_LEFT_OUT, _SHOWN = 3, 60


def figures(data: Path) -> dict[str, Any]:
    """One row for each file of a folder, by name."""
    files = [Path(str(place)) for place in expand([data])]
    return {"files": [measured(path, data) for path in files]}


def measured(path: Path, data: Path) -> dict[str, Any]:
    """What became of one file; nulls where there is nothing to count. Redaction is off: it changes no count."""
    row: dict[str, Any] = {"file": path.relative_to(data).as_posix(), "format": None, "error": None}
    with tempfile.TemporaryDirectory() as folder:
        store = Store.open(Path(folder))
        report = ingest(store, [path], redact=False)
        file = report.files[0]
        row |= {"format": file.format, "error": _short(file.error, path)}
        row |= {name: getattr(file, name) for name in ("accepted", "rejected", "duplicates", "chained")}
        row |= {
            "reasons": [] if file.error else sorted(report.reasons),
            "losses": report.losses,
            "findings": report.findings,
        }
        runs = [record.load(r["record"]) for r in store.query("select record from trajectories").to_pylist()]
        row["requests"] = store.query("select count(*) n from requests").to_pylist()[0]["n"]
    row["trajectories"] = len(runs)
    row["turns"] = sum(len(run.turns) for run in runs)
    row["calls"] = sum(len(turn.assistant.tool_calls) for run in runs for turn in run.turns)
    row |= {"text_kept": None, "left_out": []}
    if runs:
        values = [found.value for found in records(path) if isinstance(found, Record)]
        left = unkept(values, runs)
        row["text_kept"] = 1 - sum(place.characters for place in left) / max(1, characters_of(values))
        row["left_out"] = [[place.path.removeprefix("[]."), place.characters] for place in left[:_LEFT_OUT]]
    return row


def _short(error: str | None, path: Path) -> str | None:
    """An error without the folders of this machine, and without the list of all formats."""
    return error and error.replace(f"{path}: ", "").replace(str(path), path.name).partition(" Known formats:")[0]


def described() -> list[dict[str, Any]]:
    """The readers, with what their files say of the format."""
    documents = {}
    for module in pkgutil.iter_modules(readers.__path__):
        loaded = importlib.import_module(f"{readers.__name__}.{module.name}")
        if hasattr(loaded, "FORMAT"):
            documents[loaded.FORMAT.name] = " ".join((loaded.__doc__ or "").split())
    return [
        {"name": f.name, "title": f.title, "kind": f.kind, "verified": f.verified, "text": documents.get(f.name, "")}
        for f in FORMATS.values()
    ]


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="kvmill bench formats", description=__doc__)
    parser.add_argument("--data", help="a folder of trace files (default: traces/ of KVMILL_SHARED_DATA)")
    parser.add_argument("--write", action="store_true", help="renew docs/formats.md and benchmarks/results")
    parser.add_argument("--from-figures", action="store_true", help="read nothing: write the page anew")
    parser.add_argument("--json", action="store_true", help="the figures as one JSON object")
    asked = parser.parse_args()
    if asked.from_figures:
        found = json.loads(FIGURES.read_text())
    else:
        shared = os.environ.get("KVMILL_SHARED_DATA")
        folder = asked.data or (shared and f"{shared}/traces")
        if not folder:
            raise UserError("no folder of trace files: give --data FOLDER or set KVMILL_SHARED_DATA")
        found = figures(Path(folder))
    if asked.write:
        FIGURES.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    if asked.write or asked.from_figures:
        PAGE.write_text(page(found, described()))
        note(f"written: {PAGE.relative_to(ROOT)}")
    columns = ("file", "format", "accepted", "rejected", "turns", "calls", "requests")
    rows = [{**row, "file": row["file"][:_SHOWN]} for row in found["files"]]
    print(json.dumps(found, ensure_ascii=False) if asked.json else table(rows, {c: c for c in columns}))


if __name__ == "__main__":
    main()
