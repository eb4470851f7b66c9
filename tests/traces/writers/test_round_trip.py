"""Whatever a format's reader makes, written as ATIF and read again it is the same."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from sources import Beside

from kvmill.errors import UserError
from kvmill.traces.files import read_file
from kvmill.traces.formats import FORMATS
from kvmill.traces.items import each
from kvmill.traces.readers import atif as reader
from kvmill.traces.reading import Format, Record
from kvmill.traces.trajectory import Trajectory
from kvmill.traces.writers import atif
from kvmill.traces.writers.lost import lost

EXAMPLES = Path(__file__).parents[1] / "readers" / "examples"
RUNS = {name: format for name, format in FORMATS.items() if format.kind == "trajectories"}


def again(run: Trajectory) -> Trajectory:
    (back,) = reader.read(json.loads(json.dumps(atif.document(run), allow_nan=False)))
    return back


def examples(format: Format) -> Iterator[Trajectory]:
    lines = (EXAMPLES / f"{format.name}.jsonl").read_text().splitlines()
    records = (Record(n, json.loads(line)) for n, line in enumerate(lines, 1))
    items = format.gather(records, Beside()) if format.gather else each(format.read, records)
    yield from (item.value for item in items if isinstance(item.value, Trajectory))


@pytest.mark.parametrize("format", RUNS.values(), ids=RUNS)
def test_the_runs_of_every_format_come_back_as_they_were(format: Format) -> None:
    runs = list(examples(format))
    assert runs
    for run in runs:
        assert lost(run, again(run)) == ()
        assert again(run) == run


def test_the_runs_of_all_real_files_come_back_as_they_were(shared_data: Path) -> None:
    seen: Counter[str] = Counter()
    for path in sorted((shared_data / "traces").rglob("*.*")):
        try:
            format, items, _ = read_file(path)
        except UserError:
            continue  # what cannot be read is the readers' own subject
        if format.kind == "trajectories":
            for item in items:
                if isinstance(item.value, Trajectory):
                    seen[format.name] += 1
                    assert again(item.value) == item.value, path.name
    assert len(seen) > 8
    assert seen.total() > 120
