"""Two writers of one run on s3://: no row lost, none torn, none doubled; a dead one gives way, a late one finds out."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import pytest

from kvmill.errors import UserError
from kvmill.traces import lease, object_home
from kvmill.traces.manifest import FileEntry, RunInfo
from kvmill.traces.run import Run
from kvmill.traces.store import Store

WRITE = """
import json, os, sys
from kvmill.traces import lease, object_home
from kvmill.traces.store import Store
store, run_id = Store.open(sys.argv[1]), sys.argv[2]

def cells(key):
    return {"cells": [{"trajectory_id": key, "turns": n} for n in range(3)], "probes": [{"trajectory_id": key}]}
"""


def program(code: str, *words: str, **options: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITE + code, *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def cells(key: str) -> dict[str, list[dict[str, object]]]:
    return {"cells": [{"trajectory_id": key, "turns": n} for n in range(3)], "probes": [{"trajectory_id": key}]}


def assert_whole(store: Store, run_id: str, keys: set[str]) -> None:
    """Every key is in, whole, in every table, once; nothing else is."""
    run = store.open_run(run_id)
    assert run.keys() == keys
    for table, rows in (("cells", 3), ("probes", 1)):
        found = store.query(f"select trajectory_id t, count(*) n from {table} group by 1").to_pylist()
        assert {row["t"]: row["n"] for row in found} == dict.fromkeys(keys, rows)
    assert store.check() == []


def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leases of a second that nobody renews."""
    monkeypatch.setattr(lease, "SECONDS", 1.0)
    monkeypatch.setattr(lease, "_MARGIN_S", 0.0)
    renew = lease.Lease.renew
    thread = lease.RENEWING
    monkeypatch.setattr(lease.Lease, "renew", lambda held: threading.current_thread().name == thread or renew(held))


def test_threads_with_a_run_each_lose_nothing(bucket: str) -> None:
    store = Store.open(bucket)
    run = store.begin("replay", {})
    start = threading.Barrier(4)

    def write(name: str) -> None:
        mine = store.open_run(run.id)
        start.wait()
        for n in range(3):
            mine.add(cells(f"{name}{n}"), key=f"{name}{n}")

    threads = [threading.Thread(target=write, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    keys = {f"{name}{n}" for name in "abcd" for n in range(3)}
    assert_whole(store, run.id, keys)
    assert run.info.generation == len(keys)  # one winner for each version of the manifest
    run.finish()
    assert_whole(store, run.id, keys)


def test_processes_that_both_take_themselves_for_the_holder_lose_nothing(bucket: str) -> None:
    store = Store.open(bucket)
    run = store.begin("replay", {})
    run.home.release()
    code = """
lease.acquire = lambda *given: True
run, added, taken = store.open_run(run_id), 0, 0
sys.stdin.readline()
for n in range(4):
    run.add(cells(sys.argv[3] + str(n)), key=sys.argv[3] + str(n))
    try:
        run.add(cells(f"both{n}"), key=f"both{n}")
        taken += 1
    except ValueError:
        pass
print(taken)
"""
    writers = [program(code, bucket, run.id, name, stdin=subprocess.PIPE) for name in "ab"]
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    answers = [writer.communicate(timeout=60) for writer in writers]
    assert [writer.returncode for writer in writers] == [0, 0], answers
    assert sum(int(out) for out, _ in answers) == 4  # each key that both wanted went to one
    keys = {f"{name}{n}" for name in ("a", "b", "both") for n in range(4)}
    assert_whole(store, run.id, keys)
    assert store.info(run.id).generation == len(keys)


def test_a_second_process_is_refused_while_the_first_lives(bucket: str) -> None:
    store = Store.open(bucket)
    run = store.begin("replay", {})
    with program("store.resume(run_id)", bucket, run.id) as other:
        assert other.stderr is not None
        said = other.stderr.read()
    assert "is being written by process" in said
    assert "if that is dead, the run is free in" in said
    with program("print(store.busy(run_id), store.compact())", bucket, run.id) as other:
        assert other.stdout is not None
        assert other.stdout.read() == "True 0\n"
    run.finish("incomplete")
    with program("store.resume(run_id).add(cells('b'), key='b')", bucket, run.id) as other:
        pass
    assert other.returncode == 0
    run.add(cells("a"), key="a")  # it ended, and gave the run back
    assert_whole(store, run.id, {"a", "b"})


def test_a_holder_that_was_stopped_for_too_long_finds_out(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    impatient(monkeypatch)
    store = Store.open(bucket)
    run = store.begin("replay", {})
    run.add(cells("a"), key="a")
    monkeypatch.setattr(lease, "SECONDS", 60.0)  # of the one who comes next
    time.sleep(2.1)
    code = """
lease.SECONDS, lease._MARGIN_S = 1.0, 0.0
run = store.resume(run_id)
lease.SECONDS = 60.0
run.add(cells("b"), key="b")
print("taken", flush=True)
sys.stdin.readline()
run.finish("incomplete")
"""
    with program(code, bucket, run.id, stdin=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdin is not None
        assert other.stdout.readline() == "taken\n"
        lease._held[f"{bucket}/runs/{run.id}/lease.json"].renewed -= 60
        for _ in range(2):
            with pytest.raises(UserError, match="is being written by process"):
                run.add(cells("c"), key="c")
        with pytest.raises(UserError, match="is being written by process"):
            run.finish()
        other.stdin.write("\n")
        other.stdin.flush()
    assert other.returncode == 0
    assert_whole(store, run.id, {"a", "b"})
    run.add(cells("c"), key="c")
    run.finish()
    assert_whole(store, run.id, {"a", "b", "c"})


def test_a_kill_between_a_segment_and_its_manifest_leaves_the_old_state(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store.open(bucket)
    code = """
run = store.begin("replay", {}, run_id=run_id)
run.add(cells("a"), key="a")
object_home.ObjectHome.swap = lambda *given: os._exit(9)
run.add(cells("b"), key="b")
"""
    with program(code, bucket, "killed") as writer:
        pass
    assert writer.returncode == 9
    with pytest.raises(UserError, match="if that is dead, the run is free in"):
        store.resume("killed")
    assert_whole(store, "killed", {"a"})
    monkeypatch.setattr(object_home, "GRACE_S", -1.0)
    assert store.check() == []  # somebody may still be about to list it
    assert store.compact() == 0
    monkeypatch.setattr(lease, "SECONDS", -10.0)  # the lease has run out
    assert [problem.split()[0] for problem in store.check()] == ["unlisted", "unlisted"]
    monkeypatch.setattr(object_home, "GRACE_S", 3600.0)
    assert store.check() == []  # young: perhaps of a worker whose run will adopt it
    monkeypatch.setattr(object_home, "GRACE_S", -1.0)
    assert store.compact() == 2
    monkeypatch.undo()


def test_a_run_whose_writer_was_killed_goes_on_once_the_lease_is_old(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = """
run = store.begin("replay", {}, run_id=run_id)
run.add(cells("a"), key="a")
os._exit(9)
"""
    with program(code, bucket, "killed"):
        pass
    store = Store.open(bucket)
    with pytest.raises(UserError, match="is being written by"):
        store.resume("killed")
    impatient(monkeypatch)
    time.sleep(2.1)
    run = store.resume("killed")
    run.add(cells("b"), key="b")
    run.finish()
    assert_whole(store, "killed", {"a", "b"})


def test_a_lease_is_renewed_while_the_run_computes(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "SECONDS", 0.6)
    monkeypatch.setattr(lease, "_renewing", None)  # a thread of another test may sleep for longer
    run = Store.open(bucket).begin("replay", {})
    written, deadline = set[bytes](), time.monotonic() + 60
    while len(written) < 3:
        found = object_home.Bucket.of(bucket).get(f"runs/{run.id}/lease.json")
        assert found is not None
        written.add(found.data)
        assert time.monotonic() < deadline, "the lease is not renewed"
        time.sleep(0.02)
    run.add(cells("a"), key="a")  # and the holder knows how it was written last
    run.finish()
    assert not Store.open(bucket).busy(run.id)


def test_an_answer_that_was_lost_is_not_a_lost_race(bucket: str, object_server: Any) -> None:
    store = Store.open(bucket)
    run = store.begin("replay", {})
    run.add(cells("a"), key="a")
    info = run.info
    object_server.lose_answers = 1
    assert run.home.swap(info, replace(info, seed=8))  # the put is repeated, meets its own work, and is done
    assert object_server.lose_answers == 0
    assert run.info.seed == 8
    run.finish()
    assert_whole(store, run.id, {"a"})


@pytest.mark.parametrize(
    ("late", "keys"),
    [(lambda run: run.finish(), "abc"), (lambda run: run.add(cells("d"), key="d"), "abcd")],
    ids=["a merge", "a segment"],
)
def test_a_lost_answer_and_another_writer_after_it_lose_nothing(
    bucket: str, monkeypatch: pytest.MonkeyPatch, late: Callable[[Run], None], keys: str
) -> None:
    store = Store.open(bucket)
    run, swap = store.begin("replay", {}), object_home.ObjectHome.swap
    for key in "ab":
        run.add(cells(key), key=key)

    def unheard(home: object_home.ObjectHome, before: RunInfo, after: RunInfo) -> bool:
        monkeypatch.setattr(object_home.ObjectHome, "swap", swap)
        assert swap(home, before, after)
        store.open_run(run.id).add(cells("c"), key="c")
        return False

    monkeypatch.setattr(object_home.ObjectHome, "swap", unheard)
    late(run)
    assert_whole(store, run.id, set(keys))


def test_a_renewal_whose_answer_was_lost_does_not_cost_the_lease(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store.open(bucket)
    run = store.begin("replay", {})
    held, put = lease._held[f"{bucket}/runs/{run.id}/lease.json"], object_home.Bucket.put_if

    def unheard(*given: Any) -> None:
        put(*given)
        raise UserError("cannot reach it")

    with monkeypatch.context() as patch:
        patch.setattr(object_home.Bucket, "put_if", unheard)
        with pytest.raises(UserError):
            held.renew()
    held.renewed -= 60
    run.add(cells("a"), key="a")
    run.finish()
    assert_whole(store, run.id, {"a"})


def test_a_store_that_heeds_no_conditions_is_refused(
    bucket: str, object_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_home, "_trusted", set())
    monkeypatch.setattr(object_server, "ignore_conditions", True)
    with pytest.raises(UserError, match="does not heed conditional writes"):
        Store.open(bucket).begin("replay", {})
    assert object_home.Bucket.of(bucket).list() == []


def test_segments_of_other_machines_are_adopted(bucket: str) -> None:
    store = Store.open(bucket)
    run = store.begin("replay", {})
    code = """
from dataclasses import asdict
print(json.dumps([asdict(entry) for entry in store.write_segment(run_id, cells("w"), key="w")]))
"""
    with program(code, bucket, run.id) as worker:
        assert worker.stdout is not None
        made = [FileEntry(**entry) for entry in json.loads(worker.stdout.read())]
    assert [asdict(entry)["rows"] for entry in made] == [3, 1]
    assert store.query("select count(*) n from cells")["n"].to_pylist() == [0]
    run.adopt(made, key="w")
    run.add(cells("own"), key="own")
    run.finish()
    assert_whole(store, run.id, {"w", "own"})
