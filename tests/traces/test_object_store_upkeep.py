"""Check, compact, prune and remove on s3://, and what a deleted trajectory leaves there: nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvmill.errors import UserError
from kvmill.traces import cached, object_home
from kvmill.traces.delete import delete
from kvmill.traces.ingest import ingest_samples
from kvmill.traces.objects import Bucket
from kvmill.traces.retention import age, prunable
from kvmill.traces.store import Store


def run_of(store: Store, *keys: str) -> str:
    run = store.begin("replay", {})
    for key in keys:
        run.add({"cells": [{"trajectory_id": key}]}, key=key)
    run.finish()
    return run.id


def test_damage_is_named_with_the_object_and_the_remedy(bucket: str) -> None:
    store, part = Store.open(bucket), Bucket.of(bucket)
    torn, short, gone, bad, lost = (run_of(store, "a", "b") for _ in range(5))
    file = {id: f"runs/{id}/{store.info(id).files[0].path}" for id in (torn, short, gone)}
    whole = part.get(file[torn])
    assert whole is not None
    part.put(file[torn], whole.data[:-8] + b"noParqu!")
    part.put(file[short], whole.data[:-40])
    part.delete([file[gone]])
    part.delete([f"runs/{lost}/manifest.json"])
    with pytest.raises(UserError, match=f"missing file {bucket}/{file[gone]}.*kvmill store check"):
        store.query("select * from cells")
    problems = sorted(store.check())
    assert [problem.split()[0] for problem in problems] == ["missing", "no", "torn", "torn"]
    assert f"no manifest in {bucket}/runs/{lost}, but rows" in problems[1]
    part.put(f"runs/{bad}/manifest.json", b"{}")
    with pytest.raises(UserError, match=rf"damaged manifest {bucket}/runs/{bad}/manifest\.json"):
        store.runs()
    part.delete([f"runs/{bad}/manifest.json"])
    for id in (torn, short, gone, bad, lost):
        store.remove(id)
    assert part.list() == []


@pytest.mark.parametrize("name", ["run", "file"])
def test_a_manifest_of_somebody_else_leads_to_no_other_folder(bucket: str, tmp_path: Path, name: str) -> None:
    """Whoever may write to a bucket must not choose where copies come to lie on the machines of its readers."""
    store, part = Store.open(bucket), Bucket.of(bucket)
    id = run_of(store, "a")
    key, out = f"runs/{id}/manifest.json", "../" * 8 + str(tmp_path / "out.parquet").lstrip("/")
    raw = json.loads(part.get(key).data)  # type: ignore[union-attr]
    entry = raw["files"][0]
    part.put(f"runs/{id}/{out}", part.get(f"runs/{id}/{entry['path']}").data)  # type: ignore[union-attr]
    if name == "file":
        entry["path"] = out
    else:
        raw["run_id"] = f"../../{id}"
    part.put(key, json.dumps(raw).encode())
    with pytest.raises(UserError, match=r"damaged manifest .* name '\.\./|damaged manifest .* run id '\.\./"):
        store.query("select * from cells")
    assert [problem.split()[0] for problem in store.check()] == ["damaged"]
    assert not (tmp_path / "out.parquet").exists()


def test_compact_merges_and_drops_old_strays_but_nothing_listed_and_nothing_young(
    bucket: str, object_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, part = Store.open(bucket), Bucket.of(bucket)
    id = run_of(store, "a", "b")
    open_run = store.open_run(id)
    open_run.adopt(store.write_segment(id, {"cells": [{"trajectory_id": "c"}]}, key="c"), key="c")
    open_run._change(lambda _: {"state": "complete", "finished_at": "2026-01-01T00:00:00+00:00"})
    open_run.home.release()
    store.write_segment(id, {"cells": [{"trajectory_id": "never listed"}]}, key="d")
    part.put("runs/half/cells.1-x.parquet", b"x")
    part.put("runs/begun/lease.json", b"{}")
    part.put(f"runs/{id}/notes.txt", b"a user's own")
    assert store.check() == [f"no manifest in {bucket}/runs/half, but rows: put it back, or `kvmill store remove half`"]
    assert store.compact() == 2  # both segments became one file
    monkeypatch.setattr(object_home, "GRACE_S", -1.0)
    assert [problem.split()[0] for problem in store.check()] == ["no", "no", "unlisted"]
    assert store.compact() == 1
    with object_server.counted() as counts:
        assert store.compact() == 0
    assert counts["PUT"] == 0  # nobody is kept from writing for nothing
    left = {found.key.rpartition("/")[2] for found in part.list(f"runs/{id}/")}
    assert left == {"manifest.json", "lease.json", "notes.txt", store.info(id).files[0].path}
    assert sorted(store.query("select trajectory_id t from cells")["t"].to_pylist()) == ["a", "b", "c"]
    assert [found.key for found in part.list("runs/half/")] == ["runs/half/cells.1-x.parquet"]


def test_pruning(bucket: str) -> None:
    store = Store.open(bucket)
    old, new = run_of(store, "a"), run_of(store, "b")
    found = prunable(store, age("0d"), keep_last=1)
    assert [run.run_id for run in found.going] == [old]
    store.remove(old)
    assert [run.run_id for run in store.runs()] == [new]


def test_a_deleted_trajectory_is_in_no_object_and_no_copy(bucket: str) -> None:
    store = Store.open(bucket)
    ingest_samples(store)
    rows = store.query("select trajectory_id id, record from trajectories limit 1").to_pylist()[0]
    store.query("select * from turns")
    assert delete(store, rows["id"])["trajectories"] == 1
    everywhere = [found.key for found in Bucket.of(bucket).list() if found.key.endswith(".parquet")]
    copies = list(cached.cache_home().rglob("*.parquet"))
    for path in [*copies, *(Path(key) for key in everywhere)]:
        assert path.name in {entry.path for info in store.runs() for entry in info.files}
    assert store.query("select count(*) n from turns where trajectory_id = ?", [rows["id"]])["n"].to_pylist() == [0]
    assert store.check() == []
