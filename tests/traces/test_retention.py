"""What `store prune` may delete: old runs, but nothing that runs, was accepted, or that something kept came from."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from kvmill.errors import UserError
from kvmill.traces.retention import KILLED, age, prunable
from kvmill.traces.store import Store

IN_A_YEAR = datetime.now(UTC) + timedelta(days=365)


def ended(store: Store, kind: str, tables: Any = None, **config: Any) -> str:
    run = store.begin(kind, config)
    if tables:
        run.add(tables, key="x")
    run.finish()
    return run.id


def going(store: Store, **asked: Any) -> list[str]:
    return [run.run_id for run in prunable(store, age("30d"), now=IN_A_YEAR, **asked).going]


def test_only_old_runs_go_and_never_running_ones(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    old, plan = ended(store, "replay"), ended(store, "plan")
    running = store.begin("replay", {})
    assert prunable(store, age("30d")).going == ()
    found = prunable(store, age("30d"), now=IN_A_YEAR)
    assert [run.run_id for run in found.going] == [old, plan]
    assert found.staying == {running.id: "it is running"}
    running.home.release()  # as if its process were gone
    assert prunable(store, age("30d"), now=IN_A_YEAR).staying == {running.id: KILLED}
    assert going(store, kind="plan") == [plan]
    assert going(store, kind="ingest") == []
    with pytest.raises(UserError, match="unknown kind 'replays' in --kind"):
        going(store, kind="replays")


def test_the_newest_of_each_kind_stay(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    replays = [ended(store, "replay") for _ in range(3)]
    plans = [ended(store, "plan") for _ in range(2)]
    assert going(store, keep_last=1) == [replays[0], replays[1], plans[0]]
    assert going(store, keep_last=2) == [replays[0]]


def test_what_a_run_that_stays_was_made_from_stays(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    used = ended(store, "ingest", {"trajectories": [{"trajectory_id": "a"}]})
    unused = ended(store, "ingest", {"trajectories": [{"trajectory_id": "b"}]})
    replay = ended(store, "replay", trajectory_ids=["a"])
    plan = ended(store, "plan", nested={"from": [replay]})
    assert going(store) == [used, unused, replay, plan]
    found = prunable(store, age("30d"), now=IN_A_YEAR, keep_last=0, kind="ingest")
    assert [run.run_id for run in found.going] == [unused]
    assert found.staying == {used: "a run that stays replayed its trajectories"}
    later = store.begin("plan", {"nested": {"from": [replay]}})  # running: it keeps the replay, which keeps its ingest
    assert going(store) == [unused, plan]
    later.finish()
    assert going(store) == [used, unused, replay, plan, later.id]


def test_the_accepted_baseline_of_each_name_stays(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    rows = [ended(store, "replay") for _ in range(4)]
    first = ended(store, "nightly", name="n", verdict="green", replay=rows[0])
    second = ended(store, "nightly", name="n", verdict="green", replay=rows[1])
    red = ended(store, "nightly", name="n", verdict="regression", replay=rows[2])
    assert going(store) == [rows[0], rows[2], rows[3], first, red]
    accepted = ended(store, "acceptance", name="n", accepted=red)
    assert going(store) == [rows[0], rows[1], rows[3], first, second]
    assert prunable(store, age("1d"), now=IN_A_YEAR).staying[accepted] == "it says who accepted what"
    ended(store, "acceptance", name="other", accepted=rows[3])
    # Who accepted what is kept, and with it what was accepted.
    assert going(store) == [rows[0], rows[1], first, second]


@pytest.mark.parametrize("text", ["90", "d", "-1d", "1m", "1 d", "nand", "1e9d"])
def test_an_age_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="as in 12h, 90d, 4w"):
        age(text)


def test_ages() -> None:
    assert [age("12h"), age("90d"), age("1.5w")] == [timedelta(0.5), timedelta(90), timedelta(10.5)]
    with pytest.raises(UserError, match="longer than"):
        age("9" * 30 + "d")


def test_a_night_keeps_its_replay_but_not_the_nights_before_it(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    nights: list[str] = []
    rows = [ended(store, "replay") for _ in range(4)]
    for at, replay in enumerate(rows):
        held = {"baseline": nights[-1], "baseline_replay": rows[at - 1]} if nights else {}
        nights.append(ended(store, "nightly", name="n", verdict="green", replay=replay, **held))
    assert going(store) == [*rows[:3], *nights[:3]]
