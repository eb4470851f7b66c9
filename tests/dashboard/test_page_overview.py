"""The page Overview: one click runs the demo on an empty store; what goes on is seen; steps lead to pages."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import fabricate
import pytest
from pages import click, open_page, words

from kvmill.dashboard import service
from kvmill.dashboard.job import STATUS, Status, now, write
from kvmill.dashboard.jobs import Jobs
from kvmill.traces.store import Store


@pytest.fixture
def idle(own_store: Path, monkeypatch: pytest.MonkeyPatch) -> Jobs:
    """Jobs that are recorded and never run, also those of the pages."""
    monkeypatch.setattr(service, "Jobs", lambda path: Jobs(path, python="true"))
    return Jobs(own_store, python="true")


def test_a_button_starts_the_demo_on_an_empty_store_and_shows_its_job(idle: Jobs):
    app = click(open_page("overview"), "Run the demo here")
    (job,) = idle.list()
    assert (job.verb, job.asked.arguments) == ("demo", ("--quick",))
    assert app.title[0].value == "Jobs"
    assert app.query_params["job"] == job.id


def test_the_demo_is_not_offered_again_while_it_runs(idle: Jobs):
    job = idle.submit("demo", ["--quick"], by="ann")
    progress = {"label": "replay", "done": 1, "total": 4, "unit": "groups", "detail": "", "eta_s": 30.0}
    write(job.folder / STATUS, replace(Status("running", now(), started=now()), progress=progress))
    app = open_page("overview")
    assert not app.button
    text = words(app)
    assert "Going on now" in text
    assert "**demo** :blue-badge[running]" in text


def test_an_ended_demo_is_offered_again_where_it_left_nothing(idle: Jobs):
    job = idle.submit("demo", ["--quick"], by="ann")
    write(job.folder / STATUS, Status("failed", now(), ended=now(), message="no space left"))
    app = open_page("overview")
    assert [button.label for button in app.button] == ["Run the demo here"]
    assert "Going on now" not in words(app)


def test_steps_lead_to_the_pages_on_which_they_are_done(own_store: Path):
    fabricate.replay(Store.open(own_store), state="incomplete")
    app = open_page("overview")
    links = [link.proto.label for link in app.get("page_link")]
    assert links[:2] == ["Do it on the page Replay", "Do it on the page Replay"]
    assert "Do it on the page Capacity" in links


def test_a_store_of_traces_alone_is_no_empty_store(own_store: Path):
    run = Store.open(own_store).begin("ingest", {"paths": ["a.jsonl"]})
    run.finish()
    text = words(open_page("overview"))
    assert "kvmill replay --traces last" in text
    assert "Run the demo here" not in text


def test_every_policy_of_the_plan_is_shown_not_only_those_that_need_the_most(own_store: Path):
    store = Store.open(own_store)
    info = store.info(fabricate.plan(store))
    many = [f"te(proxy=assistant,delay=1,keep=0.{n})" for n in range(1, 6)]
    (row,) = [row for row in fabricate.planned()["plans"] if row["policy"] == "full"]
    same = {"workload": "long-agents", "model": "qwen3.5-27b", "gpu": "h200"}
    run = store.begin("plan", dict(info.config) | {"policies": ["full", *many]})
    told = [row | {"policy": policy, "gpus": 30 - n} for n, policy in enumerate(["full", *many])]
    run.add(
        {"plans": [same | {"policy": one["policy"], "gpus": one["gpus"], "detail": json.dumps(one)} for one in told]},
        key="plan",
    )
    run.finish()
    shown = {metric.label: metric.value for metric in open_page("overview").metric}
    assert shown["te assistant 0.5 · simulated"] == "25 × H200"
    assert len(shown) == 6
