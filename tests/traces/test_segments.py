"""Rows to Parquet files: large ones are never copied to be joined, and no row group outgrows the memory."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from kvmill.errors import UserError
from kvmill.traces import run as storing
from kvmill.traces import segments
from kvmill.traces.store import Store
from kvmill.traces.tables import SCHEMAS


def rows(first: int, count: int, length: int = 100) -> list[dict[str, object]]:
    return [{"trajectory_id": f"t-{n:06d}", "record": f"{n} " + "x" * length} for n in range(first, first + count)]


def test_large_segments_stay_and_small_ones_are_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store.open(tmp_path)
    run = store.begin("ingest", {})
    for n in range(4):
        run.add({"trajectories": rows(n * 10, 10)}, key=f"small-{n}")
    large = [{"trajectory_id": f"large-{n}", "record": str(hash(str(n)))} for n in range(3000)]
    run.add({"trajectories": large}, key="large")
    sizes = {entry.segment: entry.bytes for entry in run.info.files}
    monkeypatch.setattr(storing, "_LARGE_BYTES", sizes["large"])
    run.finish()
    assert [(entry.segment, entry.rows) for entry in run.info.files] == [("merged", 40), ("large", 3000)]
    assert run.info.keys == ("small-0", "small-1", "small-2", "small-3", "large")
    assert store.query("select count(distinct trajectory_id) n from trajectories")["n"].to_pylist() == [3040]
    assert store.check() == []
    assert store.compact() == 0


def test_row_groups_end_at_a_number_of_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "_ROW_GROUP_BYTES", 50_000)
    schema = SCHEMAS["trajectories"]
    parts = [segments.to_table("trajectories", rows(n * 10, 10, 1000), "run") for n in range(20)]
    path = tmp_path / "a.parquet"
    assert segments.write(path, parts, schema, "run") == 200
    written = pq.ParquetFile(path)
    assert 4 <= written.num_row_groups <= 5
    assert written.read().column("trajectory_id").to_pylist() == [f"t-{n:06d}" for n in range(200)]
    group = written.metadata.row_group(0)
    [record] = [c for c in map(group.column, range(group.num_columns)) if c.path_in_schema == "record"]
    assert not record.is_stats_set, "a smallest and a greatest record tell nothing"
    assert "RLE_DICTIONARY" not in record.encodings


def test_columns_that_nobody_knows_are_refused_in_any_row() -> None:
    with pytest.raises(UserError, match="'colour'"):
        segments.to_table("trajectories", [*rows(0, 2), {"trajectory_id": "x", "colour": "red"}], "run")
