"""What a reader of the store can rely on: typed views, whole segments, clear words about damage."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kvmill.errors import UserError
from kvmill.traces import manifest
from kvmill.traces.manifest import FileEntry
from kvmill.traces.store import Store
from kvmill.traces.tables import SCHEMA_VERSION, SCHEMAS


def cell(trajectory: str, **values: object) -> dict[str, object]:
    return {"cell_id": f"{trajectory}-full", "trajectory_id": trajectory, "policy": "full", "status": "ok", **values}


def test_opening_and_reading_makes_no_folder_and_every_table_is_an_empty_typed_view(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "store")
    for name, schema in SCHEMAS.items():
        table = store.query(f"select * from {name}")
        assert table.num_rows == 0
        assert table.schema.names == schema.names
        assert [pa.types.is_list(f.type) for f in table.schema] == [pa.types.is_list(f.type) for f in schema]
        assert table.schema.field(0).type == pa.string()
    assert store.query("select * from runs").num_rows == 0
    assert store.runs() == []
    assert store.check() == []
    assert not store.path.exists()


def test_segments_are_visible_while_running_and_one_file_per_table_remains(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    run = store.begin("replay", {"policies": ["full"], "where": Path("x")}, seed=7, device="cpu")
    assert store.info(run.id).state == "running"
    for i in range(3):
        run.add({"cells": [cell(f"t{i}", nll=1.5 * i)], "probes": [], "kept": [{"position": i}] * 2}, key=f"t{i}")
        assert store.query("select count(*) from cells").to_pylist() == [{"count_star()": i + 1}]
    before = store.query("select * from cells order by trajectory_id")
    run.finish()
    info = store.info(run.id)
    assert (info.state, info.seed, info.device) == ("complete", 7, "cpu")
    assert info.config == {"policies": ["full"], "where": "x"}
    assert [(f.table, f.rows) for f in info.files] == [("cells", 3), ("kept", 6)]
    assert store.query("select * from cells order by trajectory_id") == before
    assert before["run_id"].to_pylist() == [run.id] * 3
    assert before["answer_accuracy"].to_pylist() == [None] * 3
    assert sorted(p.name for p in store.folder(run.id).glob("*.parquet")) == sorted(f.path for f in info.files)
    assert run.keys() == {"t0", "t1", "t2"}
    assert run.read("cells")["nll"].to_pylist() == [0.0, 1.5, 3.0]
    assert store.check() == []


def test_a_run_says_what_made_it(tmp_path: Path) -> None:
    run = Store.open(tmp_path).begin("simulate", {})
    assert run.id.startswith("simulate-20")
    assert run.info.versions["pyarrow"] == pa.__version__
    assert run.info.versions["kvmill"]
    root = Path(manifest.__file__).resolve().parents[1]
    if (root / ".git").exists():
        head = subprocess.run(["git", "-C", root, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
        assert len(head.stdout.strip()) == len(str(run.info.git_revision).removesuffix("-dirty"))


def test_metadata_of_every_file_names_the_run_and_the_schema(tmp_path: Path) -> None:
    run = Store.open(tmp_path).begin("replay", {})
    run.add({"cells": [cell("a")]}, key="a")
    run.add({"cells": [cell("b")]}, key="b")
    run.finish()
    found = pq.ParquetFile(tmp_path / "runs" / run.id / run.info.files[0].path).metadata.metadata
    assert found[b"run_id"] == run.id.encode()
    assert found[b"schema_version"] == str(SCHEMA_VERSION).encode()


@pytest.mark.parametrize(
    ("tables", "word"),
    [({"cells": [cell("a", nnl=1.0)]}, "Did you mean 'nll'"), ({"cell": [cell("a")]}, "Did you mean 'cells'")],
)
def test_unknown_names_are_refused_and_nothing_of_the_segment_is_kept(
    tmp_path: Path, tables: dict[str, list[dict[str, object]]], word: str
) -> None:
    run = Store.open(tmp_path).begin("replay", {})
    with pytest.raises(UserError, match=word):
        run.add({"probes": [{"probe_id": "p"}], **tables}, key="a")
    assert run.info.files == ()
    assert run.keys() == set()


def test_unknown_columns_of_arrow_tables_are_refused_and_known_ones_are_cast(tmp_path: Path) -> None:
    run = Store.open(tmp_path).begin("replay", {})
    with pytest.raises(UserError, match="kwh"):
        run.add({"cells": pa.table({"kwh": [1]})}, key="a")
    run.add({"cells": pa.table({"turns": pa.array([11], pa.int16()), "nll": pa.array([1], pa.int64())})}, key="a")
    assert run.read("cells").schema.equals(SCHEMAS["cells"])
    assert run.read("cells").select(["run_id", "turns", "nll"]).to_pylist() == [
        {"run_id": run.id, "turns": 11, "nll": 1.0}
    ]


def test_nan_is_no_measurement(tmp_path: Path) -> None:
    run = Store.open(tmp_path).begin("replay", {})
    with pytest.raises(ValueError, match="NaN in column 'kl'"):
        run.add({"cells": [cell("a", kl=1.0), cell("b", kl=math.nan), cell("c", kl=None)]}, key="a")


def test_a_key_is_added_once_also_after_the_merge(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    run = store.begin("replay", {})
    run.add({"cells": [cell("a")]}, key="a")
    with pytest.raises(ValueError, match="'a' is already"):
        run.add({"cells": [cell("a")]}, key="a")
    run.finish("incomplete")
    again = store.resume(run.id)
    assert again.info.state == "running"
    with pytest.raises(ValueError, match="'a' is already"):
        again.add({"cells": [cell("a")]}, key="a")
    again.add({"cells": [cell("b")]}, key="b")
    again.finish()
    assert again.info.state == "complete"
    assert store.query("select trajectory_id from cells order by 1")["trajectory_id"].to_pylist() == ["a", "b"]


def test_hashes_beyond_two_to_the_53_survive(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    run = store.begin("ingest", {})
    big = [14879255164371896291, 2**64 - 1, 0]
    run.add({"requests": [{"request_id": "r", "arrival_s": 0.0, "prefix_blocks": big}]}, key="x")
    assert store.query("select prefix_blocks from requests")["prefix_blocks"].to_pylist() == [big]


def test_runs_are_listed_newest_first_and_an_unknown_id_is_answered_with_the_newest(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    first, second = store.begin("replay", {}), store.begin("replay", {})
    ingest = store.begin("ingest", {})
    assert [r.run_id for r in store.runs("replay")] == [second.id, first.id]
    assert store.latest("replay") is None
    first.finish()
    assert getattr(store.latest("replay"), "run_id", None) == first.id
    assert [r.run_id for r in store.runs(state="running")] == [ingest.id, second.id]
    with pytest.raises(UserError, match=f"unknown run 'nope'.*{ingest.id}"):
        store.resume("nope")
    with pytest.raises(UserError, match="unknown run"):
        store.info("../../etc")
    with pytest.raises(UserError, match="exists already"):
        store.begin("replay", {}, run_id=first.id)


def test_files_of_an_older_schema_read_with_nulls_in_the_new_columns(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    run = store.begin("replay", {})
    run.add({"cells": [cell("old", nll=2.0)]}, key="old")
    path = tmp_path / "runs" / run.id / run.info.files[0].path
    pq.write_table(pq.read_table(path).drop_columns(["kl", "dtype"]), path)
    run.add({"cells": [cell("new", kl=0.5)]}, key="new")
    rows = store.query("select trajectory_id, nll, kl from cells order by 1").to_pylist()
    assert rows == [
        {"trajectory_id": "new", "nll": None, "kl": 0.5},
        {"trajectory_id": "old", "nll": 2.0, "kl": None},
    ]
    run.finish()
    assert store.query("select trajectory_id, nll, kl from cells order by 1").to_pylist() == rows


def test_damage_is_named_with_the_file_and_the_remedy(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    run = store.begin("replay", {})
    run.add({"cells": [cell("a")]}, key="a")
    run.add({"probes": [{"probe_id": "p"}]}, key="b")
    torn, gone = (tmp_path / "runs" / run.id / entry.path for entry in run.info.files)
    torn.write_bytes(torn.read_bytes()[:-40])
    with pytest.raises(UserError, match=f"torn file .*{torn.name}.*kvmill store check"):
        store.query("select * from cells")
    gone.unlink()
    with pytest.raises(UserError, match=f"missing file .*{gone.name}.*kvmill store check"):
        store.query("select * from probes")
    assert [problem.split()[0] for problem in store.check()] == ["torn", "missing"]
    (tmp_path / "runs" / run.id / "manifest.json").write_text("{}")
    with pytest.raises(UserError, match=r"damaged manifest .*manifest\.json.*kvmill store check"):
        store.runs()
    assert "damaged manifest" in store.check()[0]


def test_a_manifest_of_a_newer_kvmill_is_refused(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    path = store.folder(store.begin("replay", {}).id) / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 99}))
    with pytest.raises(UserError, match="newer kvmill"):
        store.runs()


def test_compact_drops_what_killed_processes_left_but_nothing_listed(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    run = store.begin("replay", {})
    run.add({"cells": [cell("a")]}, key="a")
    run.finish()
    folder = tmp_path / "runs" / run.id
    (folder / ".cells.9.parquet.1.tmp").write_bytes(b"half")
    (folder / "cells.9.parquet").write_bytes(b"never listed")
    for name, age_s in (("replay-killed", 3600), ("replay-beginning", 0)):
        (tmp_path / "runs" / name).mkdir()
        os.utime(tmp_path / "runs" / name, (time.time() - age_s,) * 2)
    assert len(store.check()) == 3
    assert store.query("select count(*) n from cells").to_pylist() == [{"n": 1}]
    assert store.compact() == 2
    assert store.check() == []
    assert store.compact() == 0
    assert sorted(p.name for p in (tmp_path / "runs").iterdir()) == [run.id, "replay-beginning"]
    assert store.query("select count(*) n from cells").to_pylist() == [{"n": 1}]


def test_discard_removes_rows_for_good(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    run = store.begin("ingest", {})
    run.add({"trajectories": [{"trajectory_id": "a"}, {"trajectory_id": "b"}]}, key="x")
    run.finish()
    assert run.discard("trajectories", "trajectory_id", "zzz") == 0
    assert run.discard("trajectories", "trajectory_id", "a") == 1
    assert run.read("trajectories")["trajectory_id"].to_pylist() == ["b"]
    assert run.discard("trajectories", "trajectory_id", "b") == 1
    assert run.info.state == "complete"
    assert list(store.folder(run.id).glob("*.parquet")) == []
    store.remove(run.id)
    assert store.runs() == []


def test_a_run_has_one_writing_process(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    run = store.begin("replay", {})
    code = "import sys; from kvmill.traces.store import Store; Store.open(sys.argv[1]).resume(sys.argv[2])"
    other = [sys.executable, "-c", code, str(tmp_path), run.id]
    refused = subprocess.run(other, capture_output=True, text=True, check=False)
    assert "is being written by another process" in refused.stderr
    run.finish("incomplete")
    assert subprocess.run(other, capture_output=True, check=False).returncode == 0


def test_a_folder_name_is_never_a_pattern(tmp_path: Path) -> None:
    for name in ("a[1]b", "what's *this*?"):
        store = Store.open(tmp_path / name)
        store.begin("replay", {}).add({"cells": [cell(name)]}, key="x")
        assert store.query("select trajectory_id t from cells").to_pylist() == [{"t": name}]


def test_readers_see_whole_runs_while_others_write(tmp_path: Path) -> None:
    code = """
import sys
import time
from kvmill.traces.manifest import FileEntry
from kvmill.traces.store import Store
for n in range(6):
    run = Store.open(sys.argv[1]).begin("replay", {})
    for key in range(4):
        run.add({"cells": [{"turns": key}]}, key=str(key))
    run.finish()
"""
    store, last = Store.open(tmp_path), 0
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)]) as writer:
        while writer.poll() is None:
            now = store.query("select count(*) n from cells")["n"][0].as_py()
            assert now >= last
            assert store.check() == []
            last = now
    assert writer.returncode == 0
    assert store.query("select count(*) n from cells")["n"][0].as_py() == 24


def test_a_store_is_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="is a file"):
        Store.open(tmp_path / "file")
    with pytest.raises(UserError, match="lose rows"):
        Store.open("gs://bucket/x")
    monkeypatch.setenv("KVMILL_STORE", str(tmp_path / "named"))
    assert Store.open().path == tmp_path / "named"


def test_segments_of_other_processes_count_once_they_are_adopted(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    run = store.begin("replay", {})
    code = """
import json, sys
from dataclasses import asdict
from kvmill.traces.manifest import FileEntry
from kvmill.traces.store import Store
rows = [{"trajectory_id": sys.argv[3], "turns": n} for n in range(2)]
made = Store.open(sys.argv[1]).write_segment(sys.argv[2], {"cells": rows, "probes": []}, key=sys.argv[3])
print(json.dumps([asdict(entry) for entry in made]))
"""
    command = [sys.executable, "-c", code, str(tmp_path), run.id]
    printed = [subprocess.run([*command, key], capture_output=True, text=True, check=True).stdout for key in "ab"]
    made = [[FileEntry(**entry) for entry in json.loads(text)] for text in printed]
    assert [[entry.table for entry in entries] for entries in made] == [["cells"], ["cells"]]
    assert store.check() == []  # the run is held here, so what it does not list yet is no damage
    run.adopt(made[1], key="b")
    assert store.query("select trajectory_id from cells")["trajectory_id"].to_pylist() == ["b", "b"]
    with pytest.raises(ValueError, match="'b' is already"):
        run.adopt(made[0], key="b")
    run.add({"cells": [cell("c")]}, key="c")
    run.finish()
    assert sorted(run.read("cells")["trajectory_id"].to_pylist()) == ["b", "b", "c"]
    assert run.keys() == {"b", "c"}
    assert [made[0][0].path in problem for problem in store.check()] == [True]
    assert store.compact() == 1
    with pytest.raises(UserError, match="unknown run"):
        store.write_segment("nope", {}, key="x")


@pytest.mark.parametrize("seed", [1 << 63, -(1 << 63) - 1, 10**20])
def test_a_seed_that_no_row_holds_is_refused_before_it_makes_every_other_run_unreadable(
    tmp_path: Path, seed: int
) -> None:
    store = Store.open(tmp_path)
    with pytest.raises(UserError, match="63 bits"):
        store.begin("replay", {}, seed=seed)
    store.begin("replay", {}, seed=(1 << 63) - 1).finish()
    assert store.query("SELECT seed FROM runs").to_pylist() == [{"seed": (1 << 63) - 1}]
