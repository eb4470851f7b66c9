"""The page Jobs: state, progress, log, cancel, resume and remove; a damaged record hides no other."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pages import click, newest_ended, open_page, whole, words
from waiting import PLAN, end_all, runs, until

from kvmill.dashboard import queries_jobs
from kvmill.dashboard.job import STATUS, Status, now, write
from kvmill.dashboard.jobs import Jobs


@pytest.fixture
def jobs(own_store: Path) -> Iterator[Jobs]:
    made = Jobs(own_store)
    yield made
    end_all(made)


@pytest.fixture
def idle(own_store: Path) -> Jobs:
    """Jobs whose supervisors do nothing."""
    return Jobs(own_store, python="true")


def state(jobs: Jobs, id: str, **changes: object) -> None:
    write(jobs.folder / id / STATUS, replace(Status("running", now(), started=now()), **changes))  # type: ignore[arg-type]


def test_an_empty_store_says_how_to_start_one(own_store: Path):
    assert "kvmill jobs run -- demo --quick" in words(open_page("jobs"))
    assert not own_store.exists(), "looking creates nothing"


def test_a_running_job_shows_its_progress_and_is_cancelled_by_a_button(jobs: Jobs):
    job = jobs.submit("plan", PLAN, by="ann")
    until(jobs, job.id, lambda job: runs(job) and job.status.progress is not None)
    app = open_page("jobs")
    text = words(app)
    assert ":blue-badge[running]" in text
    assert f"kvmill plan {' '.join(PLAN)}" in text
    click(app, "Cancel")
    assert newest_ended(jobs.store).state == "cancelled"
    app = open_page("jobs", job=job.id)
    assert "cancelled by page" in words(app)
    click(app, "Remove from the list")
    assert jobs.list() == []


@pytest.mark.parametrize(("run", "there"), [("plan-20260101", True), ("max-load-20260101", False)])
def test_a_plan_links_to_its_own_answer(idle: Jobs, run: str, there: bool):
    job = idle.submit("plan", PLAN, by="ann")
    state(idle, job.id, state="done", ended=now(), run=run)
    links = [str(link.proto) for link in open_page("jobs").get("page_link")]
    assert any("See the GPUs" in link and (f"run={run}" in link) is there for link in links)


def test_the_time_to_go_is_said_and_is_an_estimate(idle: Jobs):
    job = idle.submit("replay", [], by="ann")
    progress = {"label": "replay", "done": 3, "total": 12, "unit": "trajectories", "detail": "registry-3", "eta_s": 75}
    state(idle, job.id, progress=progress)
    told = queries_jobs.rows([replace(job, status=replace(job.status, state="running", progress=progress))])[0]
    assert told["progress"] == "replay 3/12 trajectories, about 1m15s to go (estimated): registry-3"
    assert queries_jobs.share(progress) == 0.25
    assert queries_jobs.share({**progress, "total": None}) is None


def test_a_failed_job_shows_why_with_its_log(jobs: Jobs):
    job = jobs.submit("traces ingest", ["nowhere.jsonl"], by="ann")
    assert newest_ended(jobs.store).state == "failed"
    app = open_page("jobs", job=job.id)
    assert "no such file: nowhere.jsonl" in words(app)
    assert any("nowhere.jsonl" in str(code.value) for code in app.code)


def test_the_address_chooses_the_job_and_its_answer_is_there(jobs: Jobs):
    first = jobs.submit("policies", by="ann")
    newest_ended(jobs.store)
    jobs.submit("policies", by="bob")
    newest_ended(jobs.store)
    app = open_page("jobs", job=first.id)
    assert app.selectbox[0].value == first.id
    assert "policies" in json.loads(app.json[0].value)
    assert list(app.dataframe[-1].value["by"]) == ["bob", "ann"], "newest first"


def test_an_interrupted_replay_is_resumed_by_a_button(jobs: Jobs, idle: Jobs):
    job = idle.submit("replay", [], by="ann")
    state(idle, job.id, state="cancelled", run="replay-1", ended=now())
    app = open_page("jobs", job=job.id)
    click(app, "Resume")
    newest = jobs.list()[0]
    assert newest.asked.arguments == ("--resume=replay-1",)
    assert newest.asked.by.startswith("page")


def test_a_damaged_record_is_named_and_hides_no_other(idle: Jobs):
    good, bad = (idle.submit("policies", by="ann") for _ in range(2))
    state(idle, good.id, state="done", ended=now())
    (idle.folder / bad.id / STATUS).write_text("{")
    app = open_page("jobs")
    assert f"damaged record {idle.folder / bad.id / STATUS}" in words(app)
    assert list(app.dataframe[0].value["job"]) == [good.id]
    whole(app)


def test_took_counts_from_the_start_to_the_end(idle: Jobs):
    job = idle.submit("policies", by="ann")
    assert queries_jobs.took(job) == "–", "it has not begun"
    status = Status("done", now(), started="2026-01-01T00:00:00+00:00", ended="2026-01-01T00:01:15+00:00")
    assert queries_jobs.took(replace(job, status=status)) == "1m15s"
    assert queries_jobs.took(replace(job, status=replace(status, state="lost", ended=None))) == "–"
