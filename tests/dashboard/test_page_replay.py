"""The page Replay: what is chosen becomes the command, its cost is told before, and it is watched after."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import fabricate
import psutil
import pytest
from pages import click, open_page, whole, words
from streamlit.testing.v1 import AppTest

from kvmill.dashboard import service
from kvmill.dashboard.job import STATUS, Status, now, write
from kvmill.dashboard.jobs import Jobs
from kvmill.replay.policies.registry import parse_policies
from kvmill.traces.ingest import ingest
from kvmill.traces.store import Store

EXAMPLES = Path(__file__).parents[1] / "traces" / "readers" / "examples"


@pytest.fixture(autouse=True)
def idle(own_store: Path, monkeypatch: pytest.MonkeyPatch) -> Jobs:
    """Jobs that are recorded and never run, also those of the pages."""
    monkeypatch.setattr(service, "Jobs", lambda path: Jobs(path, python="true"))
    return Jobs(own_store, python="true")


def figures(app: AppTest) -> dict[str, str]:
    return {metric.label: metric.value for metric in app.metric}


def test_on_an_empty_store_the_bundled_samples_can_be_replayed(own_store: Path):
    app = open_page("replay")
    assert app.selectbox(key="choice of traces").value == "samples"
    assert figures(app)["Trajectories"] == "4"
    assert not own_store.exists(), "looking creates nothing"


def test_what_is_chosen_becomes_the_command(idle: Jobs):
    app = open_page("replay", traces="samples-more")
    app.number_input(key="replay limit").set_value(2)
    app.multiselect(key="replay methods").set_value(["te(proxy=boundary)", "drop_tool_outputs"])
    app.multiselect(key="replay ratios").set_value(["0.1", "0.4"])
    app.text_area(key="replay more").input("truncate(keep=0.5)\n\n")
    app.radio(key="replay mode").set_value("stepwise")
    app.run()
    click(app, "Start the replay")
    (job,) = idle.list()
    assert job.verb == "replay"
    policies = [word.partition("=")[2] for word in job.asked.arguments if word.startswith("--policy=")]
    assert policies == ["full", "te(proxy=boundary,keep=0.1)", "te(proxy=boundary,keep=0.4)", "drop_tool_outputs",
                        "truncate(keep=0.5)"]  # fmt: skip
    assert parse_policies(policies)
    others = [word for word in job.asked.arguments if not word.startswith("--policy=")]
    assert others == [
        "--traces=samples-more",
        "--model=smollm2-135m",
        "--mode=stepwise",
        "--measure=quality",
        "--limit=2",
    ]
    assert ":gray-badge[queued]" in words(app)


def test_the_closed_loop_measures_quality_alone(idle: Jobs):
    app = open_page("replay")
    app.radio(key="replay mode").set_value("closed").run()
    assert app.radio(key="replay measure True").options == ["quality"]
    click(app, "Start the replay")
    assert "--explain" not in idle.list()[0].asked.arguments


def test_the_cost_is_told_before_and_is_labelled_an_estimate(own_store: Path):
    app = open_page("replay")
    first = figures(app)
    assert {"Time · estimated", "Memory · estimated", "Tokens · estimated"} <= first.keys()
    assert "assumed: no such run yet" in words(app)
    app.number_input(key="replay limit").set_value(0).run()
    assert figures(app)["Trajectories"] == "80"
    assert figures(app)["Time · estimated"] != first["Time · estimated"]


def test_a_model_that_is_not_known_has_no_figure_and_says_so():
    app = open_page("replay")
    app.text_input(key="replay other model").input("nobody/unknown-model").run()
    whole(app)
    assert figures(app)["Memory · estimated"] == "unknown"
    assert "not known here" in words(app)


def test_a_misspelled_policy_is_explained_and_nothing_can_be_started():
    app = open_page("replay")
    app.text_area(key="replay more").input("tee(keep=0.2)").run()
    whole(app)
    assert "tee" in words(app)
    assert "Start the replay" not in words(app)


def test_a_path_outside_cannot_be_a_model(idle: Jobs):
    app = open_page("replay")
    app.text_input(key="replay other model").input("/etc").run()
    click(app, "Start the replay")
    assert "outside of what may be read here" in words(app)
    assert idle.list() == []


def test_own_traces_come_first_and_can_be_chosen_by_family(own_store: Path):
    ingest(Store.open(own_store), [EXAMPLES / "tau-bench.jsonl"])
    app = open_page("replay")
    assert app.selectbox(key="choice of traces").value == "last"
    assert figures(app)["Trajectories"] == "1"
    app.selectbox(key="choice of traces").select("source=tau-bench").run()
    assert figures(app)["Trajectories"] == "1"
    assert app.query_params["traces"] == "source=tau-bench"


def test_choices_are_kept_over_a_change_of_pages():
    app = open_page("replay")
    app.multiselect(key="replay ratios").set_value(["0.4"])
    app.selectbox(key="choice of traces").select("stress").run()
    app.switch_page("app_pages/jobs.py").run()
    app.switch_page("app_pages/replay.py").run()
    assert app.multiselect(key="replay ratios").value == ["0.4"]
    assert app.selectbox(key="choice of traces").value == "stress"


def test_an_interrupted_replay_is_gone_on_with(own_store: Path, idle: Jobs):
    run = fabricate.replay(Store.open(own_store), state="incomplete")
    click(open_page("replay"), "Go on with it")
    assert idle.list()[0].asked.arguments == (f"--resume={run}",)


def test_a_running_replay_is_watched_with_its_time_to_go(idle: Jobs):
    job = idle.submit("replay", [], by="ann")
    progress = {"label": "replay", "done": 3, "total": 12, "unit": "trajectories", "detail": "registry-3", "eta_s": 75}
    write(job.folder / STATUS, replace(Status("running", now(), started=now()), progress=progress))
    app = open_page("replay")
    assert ":blue-badge[running]" in words(app)
    bar = app.get("progress")[0].proto
    assert bar.value == 25
    assert "about 1m15s to go" in bar.text
    assert "Cancel" in words(app)


def test_a_damaged_store_says_what_is_wrong(own_store: Path):
    store = Store.open(own_store)
    run = ingest(store, [EXAMPLES / "tau-bench.jsonl"]).run
    next(store.folder(run).glob("trajectories*.parquet")).write_bytes(b"torn")
    assert "The store cannot be read" in words(open_page("replay"))


def test_a_busy_or_full_machine_is_said_before_the_start(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(psutil, "getloadavg", lambda: (64.0, 1.0, 1.0))
    monkeypatch.setattr(psutil, "cpu_count", lambda: 2)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=int(5e8)))
    text = words(open_page("replay"))
    assert "busy (load 64 on 2 cores" in text
    assert "500 MB of memory free" in text
