"""A kill at any point leaves the old state or the new one: SIGKILL at every file-system step, and at random times."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

from kvmill.traces.store import Run, Store

WRITE = """
import os, signal, sys
from pathlib import Path
from kvmill.traces.store import Run, Store

def write(run, segments):
    for i in range(segments):
        if f"t{i}" not in run.keys():
            rows = [{"trajectory_id": f"t{i}", "turns": n} for n in range(3)]
            run.add({"cells": rows, "probes": [{"trajectory_id": f"t{i}"}]}, key=f"t{i}")
            print("added", flush=True)
    run.finish()
"""

# One process per step of the file system (rename, fsync, unlink): each dies by SIGKILL just before its own.
DIE_AT_EVERY_STEP = f"""{WRITE}
seen = die_at = 0
armed = False

def counted(function):
    def call(*args, **kwargs):
        global seen
        seen += 1
        if armed and seen == die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*args, **kwargs)
    return call

os.replace, os.fsync, Path.unlink = counted(os.replace), counted(os.fsync), counted(Path.unlink)
killed = True
while killed:
    die_at += 1
    run = Store.open(Path(sys.argv[1]) / str(die_at)).begin("replay", {{}}, run_id="killed")
    run.finish("incomplete")
    if not os.fork():
        seen, armed = 0, True
        write(run, 2)
        os._exit(0)
    killed = os.WIFSIGNALED(os.wait()[1])
"""

UNTIL_KILLED = f"""{WRITE}
run = Store.open(sys.argv[1]).resume(sys.argv[2])
write(run, 10_000)
"""


def segment(key: str) -> dict[str, list[dict[str, object]]]:
    return {
        "cells": [{"trajectory_id": key, "turns": n} for n in range(3)],
        "probes": [{"trajectory_id": key}],
    }


def assert_whole(store: Store, run: Run) -> int:
    """Every segment that the manifest names is whole, in every table, once; nothing else is visible."""
    keys = run.keys()
    with store.connect() as connection:
        for table, rows in (("cells", 3), ("probes", 1)):
            found = connection.sql(f"select trajectory_id, count(*) from {table} group by 1").fetchall()
            assert dict(found) == dict.fromkeys(keys, rows)
    assert [problem for problem in store.check() if not problem.startswith("unlisted")] == []
    return len(keys)


def test_killed_at_every_step_of_two_segments_and_the_merge(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", DIE_AT_EVERY_STEP, str(tmp_path)], check=True, timeout=240)
    stores = sorted(tmp_path.iterdir(), key=lambda path: int(path.name))
    assert len(stores) > 20
    reached = []
    for path in stores:
        store = Store.open(path)
        reached.append((len(store.info("killed").keys), store.info("killed").state))
        run = store.resume("killed")
        assert_whole(store, run)
        for key in sorted({"t0", "t1"} - run.keys()):
            run.add(segment(key), key=key)
        run.finish()
        store.compact()
        assert sorted(run.read("cells")["trajectory_id"].to_pylist()) == ["t0"] * 3 + ["t1"] * 3
        assert sorted(run.read("probes")["trajectory_id"].to_pylist()) == ["t0", "t1"]
        assert store.check() == []
    assert reached == sorted(reached, key=lambda at: (at[1] == "complete", at[0]))
    assert {(0, "incomplete"), (1, "running"), (2, "running"), (2, "complete")} == set(reached)


def test_killed_at_random_times_no_row_is_lost_and_none_doubled(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    run = store.begin("replay", {})
    run.finish("incomplete")
    dice = random.Random(5)
    done = 0
    for _ in range(4):
        command = [sys.executable, "-c", UNTIL_KILLED, str(tmp_path), run.id]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            added = [process.stdout.readline() for _ in range(dice.randint(1, 5))]
            time.sleep(dice.uniform(0, 0.05))
            process.kill()
        now = assert_whole(store, run)
        assert now >= done + len(added)
        done = now
