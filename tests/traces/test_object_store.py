"""A store on s3:// is the same store: runs, views, copies on this machine, and what a listing costs."""

from __future__ import annotations

import importlib.util
import os
import time
from pathlib import Path
from typing import Any

import pytest

from kvmill.errors import UserError
from kvmill.traces import cached, object_home, objects
from kvmill.traces.store import Store
from kvmill.traces.tables import SCHEMAS


def cell(trajectory: str, **values: object) -> dict[str, object]:
    return {"cell_id": f"{trajectory}-full", "trajectory_id": trajectory, "policy": "full", "status": "ok", **values}


def filled(store: Store, runs: int, segments: int = 2) -> list[str]:
    """Complete runs, each with a cell per segment."""
    out = []
    for n in range(runs):
        run = store.begin("replay", {"n": n})
        for key in range(segments):
            run.add({"cells": [cell(f"{n}-{key}", nll=1.0 * n)]}, key=str(key))
        run.finish()
        out.append(run.id)
    return out


def test_the_whole_life_of_a_run(bucket: str) -> None:
    store = Store.open(bucket)
    assert store.runs() == []
    with store.connect() as connection:
        assert [connection.sql(f"select * from {name}").fetchall() for name in SCHEMAS] == [[]] * len(SCHEMAS)
    run = store.begin("replay", {"where": Path("x")}, seed=7, device="cpu")
    assert store.info(run.id).state == "running"
    assert store.busy(run.id)
    for i in range(3):
        run.add({"cells": [cell(f"t{i}", nll=1.5 * i)], "probes": [], "kept": [{"position": i}] * 2}, key=f"t{i}")
        assert store.query("select count(*) n from cells").to_pylist() == [{"n": i + 1}]
    with pytest.raises(ValueError, match="'t1' is already"):
        run.add({"cells": [cell("t1")]}, key="t1")
    run.annotate(more=1)
    before = store.query("select * from cells order by trajectory_id")
    run.finish()
    info = store.info(run.id)
    assert (info.state, info.seed, info.config) == ("complete", 7, {"where": "x", "more": 1})
    assert [(f.table, f.rows) for f in info.files] == [("cells", 3), ("kept", 6)]
    assert store.query("select * from cells order by trajectory_id") == before
    assert run.read("cells")["nll"].to_pylist() == [0.0, 1.5, 3.0]
    assert run.discard("cells", "trajectory_id", "t1") == 1
    assert store.open_run(run.id).read("cells")["trajectory_id"].to_pylist() == ["t0", "t2"]
    assert store.check() == []
    assert not store.busy(run.id)
    with pytest.raises(UserError, match="exists already"):
        store.begin("replay", {}, run_id=run.id)
    with pytest.raises(UserError, match=f"unknown run 'nope'.*{run.id}"):
        store.resume("nope")
    again = store.resume(run.id)
    again.add({"cells": [cell("t9")]}, key="t9")
    again.finish("incomplete")
    assert [r.run_id for r in store.runs(state="incomplete")] == [run.id]
    store.remove(run.id)
    assert store.runs() == []
    assert object_home.Bucket.of(bucket).list() == []
    assert not list(cached.cache_home().rglob("*.parquet"))


def test_a_listing_costs_one_request_and_one_for_each_manifest_that_is_new(bucket: str, object_server: Any) -> None:
    store = Store.open(bucket)
    names = filled(store, 5)
    object_home._seen.clear()  # as another process would find it
    with object_server.counted() as counts:
        assert {info.run_id for info in store.runs()} == set(names)
    assert counts == {"LIST": 1, "GET": 5}
    with object_server.counted() as counts:
        assert len(store.runs("replay", "complete")) == 5
    assert counts == {"LIST": 1}
    filled(store, 1)
    with object_server.counted() as counts:
        assert len(store.runs()) == 6
    assert counts == {"LIST": 1}  # what this process wrote it knows
    with object_server.counted() as counts:
        store.info(names[0])
    assert counts["LIST"] == 0


def test_duckdb_reads_copies_that_are_fetched_once(bucket: str, object_server: Any) -> None:
    store = Store.open(bucket)
    filled(store, 20, segments=1)
    with object_server.counted() as counts:
        rows = store.query("select count(*) n, count(distinct run_id) runs, sum(nll) s from CELLS").to_pylist()
    assert rows == [{"n": 20, "runs": 20, "s": 190.0}]
    assert counts == {"LIST": 1, "GET": 20}
    with object_server.counted() as counts:
        last = store.query("select max(nll) m from cells where run_id in (select run_id from runs)")
        assert last["m"].to_pylist() == [19.0]
        assert store.query("select count(*) n from probes")["n"][0].as_py() == 0
        assert store.query("select 1 one")["one"][0].as_py() == 1
    assert counts == {"LIST": 3}
    with store.connect() as connection:
        assert connection.sql("select count(*) from cells").fetchall() == [(20,)]


def test_only_files_of_the_tables_in_question_are_fetched(bucket: str, object_server: Any) -> None:
    store = Store.open(bucket)
    run = store.begin("replay", {})
    run.add({"cells": [cell("a")], "probes": [{"probe_id": "p"}], "kept": [{"position": 1}]}, key="a")
    with object_server.counted() as counts:
        store.query("select * from probes")
    assert counts == {"LIST": 1, "GET": 1}


def test_copies_are_bounded_and_forgotten_with_what_they_were_of(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store.open(bucket)
    first, second = filled(store, 2)
    question = "select count(*) n from cells"
    assert store.query(question)["n"].to_pylist() == [4]
    copies = cached.cache_home() / "objects"
    assert len(list(copies.rglob("*.parquet"))) == 2
    assert {path.stat().st_mode & 0o077 for path in [copies, *copies.rglob("*")] if path.is_dir()} == {0}
    other = Store.open(bucket)  # as on another machine, of whose copies nobody here knows
    monkeypatch.setenv("KVMILL_CACHE", str(cached.cache_home() / "elsewhere"))
    Store.open(bucket).remove(first)
    monkeypatch.setenv("KVMILL_CACHE", str(copies.parent))
    monkeypatch.setattr(cached, "_JUST_READ_S", -1.0)
    (stays,) = copies.glob(f"*/{second}*")
    halves = [stays / f".cells.1.parquet.{name}.tmp" for name in ("fetching", "killed")]
    for half in halves:
        half.write_bytes(b"PAR1")
    os.utime(halves[1], (0, 0))
    assert other.query(question)["n"].to_pylist() == [2]
    assert len(list(copies.rglob("*.parquet"))) == 1
    assert [half.exists() for half in halves] == [True, False]
    monkeypatch.setenv(cached.MOST_GIB, "0")
    monkeypatch.setattr(cached, "_IN_USE_S", -1.0)
    cached.bound(copies)
    assert not list(copies.rglob("*.parquet"))
    monkeypatch.setattr(cached, "_IN_USE_S", 600.0)
    assert other.query(question)["n"].to_pylist() == [2]  # fetched again
    cached.bound(copies)
    assert len(list(copies.rglob("*.parquet"))) == 1  # in use
    monkeypatch.setenv(cached.MOST_GIB, "many")
    with pytest.raises(UserError, match="give a number of GiB"):
        cached.bound(copies)
    assert second in store.info(second).run_id


def upload(folder: Path, bucket: str) -> None:
    """Every file as it is, under its own name."""
    for path in folder.rglob("*.*"):
        objects.Bucket.of(bucket).put(str(path.relative_to(folder)), path.read_bytes())


def test_a_run_of_an_old_name_shows_none_of_the_old_rows(bucket: str, tmp_path: Path) -> None:
    for value in ("old", "new"):  # files of one name and one size
        run = Store.open(tmp_path / value).begin("replay", {}, run_id="mine")
        run.add({"cells": [cell(value)]}, key="x")
        run.finish()
        upload(tmp_path / value, bucket)
        assert Store.open(bucket).query("select trajectory_id t from cells")["t"].to_pylist() == [value]


def test_a_folder_copied_to_a_bucket_is_the_same_store(bucket: str, tmp_path: Path) -> None:
    local, there = Store.open(tmp_path / "local"), Store.open(bucket)
    filled(local, 2)
    upload(tmp_path / "local", bucket)
    assert there.runs() == local.runs()
    assert there.query("select * from cells order by all") == local.query("select * from cells order by all")
    assert there.check() == []


def test_a_question_during_a_merge_is_answered_from_one_state(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store.open(bucket)
    run = store.begin("replay", {})
    for key in "ab":
        run.add({"cells": [cell(key)]}, key=key)
    infos = type(store.storage).infos
    merged = []

    def listed_just_before(storage: Any) -> Any:
        found = infos(storage)
        if not merged:
            merged.append(run.finish())
        return found

    monkeypatch.setattr(type(store.storage), "infos", listed_just_before)
    assert store.query("select count(*) n from cells")["n"].to_pylist() == [2]
    assert merged


def test_more_objects_than_a_page_of_a_listing(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    part = objects.Bucket.of(f"{bucket}/many")
    wanted = [f"runs/{n:04}" for n in range(30)]
    for key in wanted:
        part.put(key, b"x")
    asked = objects.Bucket._client.fget(part)  # type: ignore[attr-defined]
    monkeypatch.setattr(objects.Bucket, "_client", property(lambda _: _Paged(asked)))
    assert [found.key for found in part.list("runs/")] == wanted
    part.delete(wanted)
    assert part.list() == []


class _Paged:
    """A client whose listings come seven at a time."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def list_objects_v2(self, **given: Any) -> Any:
        return self._client.list_objects_v2(MaxKeys=7, **given)


@pytest.mark.parametrize(
    ("where", "word"),
    [
        ("gs://bucket/x", "two writers lose rows"),
        ("az://bucket/x", "two writers lose rows"),
        ("s3://", "give s3://BUCKET"),
        ("s3://key:secret@bucket/x", "never in an address"),
        ("gs://key:secret@bucket/x", "gs://bucket/x"),
    ],
)
def test_other_addresses_are_refused_and_no_secret_is_repeated(where: str, word: str) -> None:
    with pytest.raises(UserError, match=word) as refused:
        Store.open(where)
    assert "secret" not in str(refused.value)


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'kvmill\[s3\]'"):
        Store.open("s3://bucket/x")


def test_failures_are_one_line_without_secrets(
    bucket: str, object_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store.open(bucket)
    monkeypatch.setattr(objects, "ATTEMPTS", 2)
    objects._client.cache_clear()

    def refused(ask: Any) -> str:
        with pytest.raises(UserError) as found:
            ask()
        said = str(found.value)
        assert "\n" not in said
        assert "never-shown" not in said
        return said

    assert "no bucket 'nowhere'" in refused(Store.open("s3://nowhere/x").runs)
    assert "no bucket 'nowhere'" in refused(lambda: Store.open("s3://nowhere/x").begin("replay", {}))
    object_server.answer = lambda method, path: ("403 Forbidden", "AccessDenied")
    assert "access denied (AccessDenied)" in refused(store.runs)
    assert "get, put, list and delete" in refused(lambda: store.begin("replay", {}))
    object_server.answer = lambda method, path: ("501 Not Implemented", "NotImplemented") if method == "PUT" else None
    assert "knows no conditional writes" in refused(lambda: store.begin("replay", {}))
    object_server.answer = lambda method, path: None
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://me:never-shown@127.0.0.1:9")
    started = time.monotonic()
    assert "cannot reach s3://bucket" in refused(store.runs)
    assert time.monotonic() - started < 30
    monkeypatch.setenv("AWS_ENDPOINT_URL", object_server.url)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    objects._client.cache_clear()
    assert "credentials" in refused(store.runs)
    objects._client.cache_clear()


def test_what_needs_a_folder_says_so(bucket: str) -> None:
    store = Store.open(bucket)
    with pytest.raises(UserError, match="object store, and this needs a folder"):
        _ = store.path
    assert store.where == str(store) == bucket
    assert store.desk.is_relative_to(cached.cache_home())
