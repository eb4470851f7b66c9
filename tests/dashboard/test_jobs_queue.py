"""The queue of jobs, and replays that go on where they were cancelled."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from waiting import PLAN, end_all, ended, runs, until

from kvmill.dashboard import slots
from kvmill.dashboard.job import STATUS, Status, now, write
from kvmill.dashboard.jobs import Jobs, NotNow
from kvmill.errors import UserError
from kvmill.traces.store import Store


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Jobs]:
    made = Jobs(tmp_path / "store")
    yield made
    end_all(made)


def test_a_second_heavy_job_waits_its_turn_and_then_runs_while_light_ones_pass(jobs: Jobs):
    first = until(jobs, jobs.submit("plan", PLAN, by="ann").id, runs)
    second, third = (jobs.submit("plan", PLAN, by="bob") for _ in range(2))
    assert ended(jobs, jobs.submit("policies", by="cy").id).state == "done", "a light job does not wait for heavy ones"
    assert [jobs.get(job.id).state for job in (first, second, third)] == ["running", "queued", "queued"]
    jobs.cancel(third.id, by="bob")
    assert ended(jobs, third.id).status.started is None, "a queued job is cancelled without being run"
    jobs.cancel(first.id, by="ann")
    second = until(jobs, second.id, runs)
    assert jobs.get(first.id).state == "cancelled"
    assert [job.id for job in jobs.list()][-2:] == [second.id, first.id], "newest first"


def test_a_job_that_has_not_ended_cannot_be_removed_or_resumed(jobs: Jobs):
    job = until(jobs, jobs.submit("plan", PLAN, by="ann").id, runs)
    with pytest.raises(NotNow, match="is running"):
        jobs.remove(job.id)
    with pytest.raises(NotNow, match="is running"):
        jobs.resume(job.id, by="ann")


def test_slots_go_out_in_the_order_of_asking_and_a_dead_ticket_holds_nobody_up(tmp_path: Path):
    for job in ("a", "b", "c"):
        slots.ask(tmp_path, "heavy", job)
    assert slots.take(tmp_path, "heavy", "b", lambda other: True) is None, "a was first"
    held = slots.take(tmp_path, "heavy", "b", lambda other: other != "a")
    assert held is not None, "the supervisor of a is dead"
    assert slots.take(tmp_path, "heavy", "c", lambda other: True) is None, "there is one slot"
    os.close(held)
    assert slots.take(tmp_path, "heavy", "c", lambda other: True) is not None


def test_the_number_of_heavy_slots_is_a_setting(monkeypatch: pytest.MonkeyPatch):
    assert slots.slots_of("heavy") == 1
    monkeypatch.setenv("KVMILL_HEAVY_JOBS", "3")
    assert slots.slots_of("heavy") == 3
    monkeypatch.setenv("KVMILL_HEAVY_JOBS", "none")
    with pytest.raises(UserError, match="KVMILL_HEAVY_JOBS=none"):
        slots.slots_of("heavy")


def test_resuming_a_replay_is_a_new_job_that_goes_on_with_its_run(tmp_path: Path):
    jobs = Jobs(tmp_path / "store", python="true")  # submits, and nothing comes of it
    first = jobs.submit("replay", ["--traces=samples"], by="ann")
    over = Status("cancelled", now(), run="replay-1", ended=now())
    write(first.folder / STATUS, over)
    second = jobs.resume(first.id, by="bob")
    assert (second.asked.verb, second.asked.arguments, second.asked.by) == ("replay", ("--resume=replay-1",), "bob")
    write(first.folder / STATUS, replace(over, run=None))
    with pytest.raises(NotNow, match="began no replay run"):
        jobs.resume(first.id, by="bob")


@pytest.mark.slow
def test_a_cancelled_replay_is_resumed_and_computes_every_cell_once(jobs: Jobs, tmp_path: Path):
    from tiny import save_tiny

    model = save_tiny(tmp_path / "model")
    words = [f"--model={model}", "--traces=samples", "--policy=truncate(keep=0.5)", "--limit=4", "--long=cut"]
    job = jobs.submit("replay", words, by="ann")
    job = until(jobs, job.id, lambda job: job.status.progress is not None, 120.0)
    jobs.cancel(job.id, by="ann")
    job = ended(jobs, job.id)
    assert job.state == "cancelled", jobs.log(job.id)
    run = job.status.run
    store = Store(jobs.store)
    assert store.info(run or "").state == "incomplete"
    done = store.info(run or "").rows("cells")
    resumed = until(jobs, jobs.resume(job.id, by="bob").id, lambda job: job.ended, 120.0)
    assert (resumed.state, resumed.status.run) == ("done", run), jobs.log(resumed.id)
    cells = store.query("SELECT trajectory_id, policy FROM cells").to_pylist()
    assert len(cells) == len({json.dumps(cell) for cell in cells}) == 8 > done
