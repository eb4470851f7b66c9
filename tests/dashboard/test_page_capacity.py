"""The page Capacity: a stored plan is shown with its settings, what is moved is bounded at once and then simulated."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import fabricate
import pytest
from pages import click, open_page, whole, words
from streamlit.testing.v1 import AppTest

from kvmill.dashboard import service
from kvmill.dashboard.job import RESULT, STATUS, Status, now, write
from kvmill.dashboard.jobs import Jobs
from kvmill.traces.store import Store

QUICK = {"run": "new", "workload": "samples"}
THIRD = "te(proxy=assistant,delay=1,keep=0.3)"


@pytest.fixture(autouse=True)
def idle(own_store: Path, monkeypatch: pytest.MonkeyPatch) -> Jobs:
    """Jobs that are recorded and never run, also those of the pages."""
    monkeypatch.setattr(service, "Jobs", lambda path: Jobs(path, python="true"))
    return Jobs(own_store, python="true")


def figures(app: AppTest) -> dict[str, str]:
    return {metric.label: metric.value for metric in app.metric}


def test_an_empty_store_has_bounds_and_says_that_they_are_bounds(own_store: Path):
    app = open_page("capacity")
    shown = figures(app)
    assert int(shown["GPUs at least · estimated bound"]) < int(shown["GPUs for every cache · estimated"])
    assert "Answer · estimated bound" in words(app)
    assert "kvmill plan" in words(app)
    assert not own_store.exists(), "looking creates nothing, and starts nothing"


def test_a_stored_plan_leads_with_its_sentence_and_its_figures(own_store: Path):
    fabricate.plan(Store.open(own_store))
    app = open_page("capacity")
    assert app.success[0].value.startswith(f"With `{fabricate.DELAYED}` long-agents needs 14 × H200 instead of 27")
    shown = figures(app)
    assert shown["GPUs needed · simulated"] == "14"
    assert shown["GPUs saved · simulated"] == "13"
    assert shown["GPUs slower / faster · simulated"] == "15 / 13"
    assert shown["Turns to break even · simulated"] == "1.90 ×"
    assert "What binds (simulated): KV blocks." in words(app)
    assert "400 agents (assumed)" in list(app.dataframe[-1].value["value"])
    assert "stored before this was kept by fleet size" in words(app), "no empty chart where goodput was not kept"


def test_the_address_names_plan_and_policy(own_store: Path):
    store = Store.open(own_store)
    run = fabricate.plan(store)
    fabricate.plan(store, workload="samples")
    app = open_page("capacity", run=run, policy=fabricate.BOUNDARY)
    shown = figures(app)
    assert shown["GPUs needed · simulated"] == "12"
    assert shown["GPUs saved · simulated"] == "15"
    assert shown["USD per month · assumed price"] == "24,000"
    assert app.query_params["keep"] == ["0.2"] or app.query_params["keep"] == "0.2"
    assert app.selectbox(key="choice of workload").value == "long-agents"


def test_moving_the_slider_is_answered_at_once_and_refined_by_a_job(own_store: Path, idle: Jobs):
    fabricate.plan(Store.open(own_store))
    app = open_page("capacity")
    app.slider(key="capacity keep").set_value(0.3).run()
    whole(app)
    assert "GPUs at least · estimated bound" in figures(app)
    (job,) = idle.list()
    assert job.verb == "plan"
    assert "--policy=full" in job.asked.arguments
    assert f"--policy={THIRD}" in job.asked.arguments
    assert "--replications=3" in job.asked.arguments
    assert ":gray-badge[queued]" in words(app)


def test_the_next_move_ends_the_simulation_of_the_last(own_store: Path, idle: Jobs):
    app = open_page("capacity")
    app.slider(key="capacity keep").set_value(0.3).run()
    app.slider(key="capacity keep").set_value(0.4).run()
    whole(app)
    new, old = idle.list()
    assert (old.folder / "cancel.json").exists()
    assert not (new.folder / "cancel.json").exists()


def test_moved_on_and_back_before_it_was_done_is_simulated_again(idle: Jobs):
    app = open_page("capacity", **QUICK)
    for keep in (0.3, 0.4, 0.3):
        app.slider(key="capacity keep").set_value(keep).run()
    whole(app)
    again, second, first = idle.list()
    assert again.asked.arguments == first.asked.arguments
    assert (first.folder / "cancel.json").exists()
    assert (second.folder / "cancel.json").exists()
    assert not (again.folder / "cancel.json").exists()
    assert f"Of {THIRD}, while nothing is simulated for it." in words(app)


def test_a_simulation_that_was_cancelled_by_hand_is_not_begun_again(own_store: Path, idle: Jobs):
    app = open_page("capacity", **QUICK)
    app.slider(key="capacity keep").set_value(0.3).run()
    (job,) = idle.list()
    write(job.folder / STATUS, replace(Status("cancelled", now(), started=now()), ended=now()))
    app.run()
    whole(app)
    assert len(idle.list()) == 1
    assert "Simulate again" in words(app)


def test_a_change_of_the_settings_is_no_move_and_an_interrupted_look_is_not_forgotten(idle: Jobs):
    app = open_page("capacity", **QUICK)
    app.number_input(key="capacity new agents").set_value(100).run()
    assert idle.list() == []
    app.session_state["capacity chosen"] = (app.session_state["capacity chosen"][0], "te(keep=0.9)")
    app.run()
    assert len(idle.list()) == 1, "the look at the move before ended before it could begin anything"


def test_the_answer_at_other_loads_is_simulated_on_request(own_store: Path, idle: Jobs):
    app = open_page("capacity", **QUICK)
    click(app, "Simulate 0.5 to 2 times the load")
    (job,) = idle.list()
    assert "--sweep=scale_load=0.5,0.75,1,1.25,1.5,2" in job.asked.arguments
    rows = [{"policy": "full", "scale_load": load, "gpus": 9, "gpus_low": 8, "gpus_high": 9} for load in (0.5, 2)]
    (job.folder / RESULT).write_text(json.dumps({"sweep": rows}))
    write(job.folder / STATUS, replace(Status("done", now(), started=now()), ended=now(), exit_code=0))
    app.run()
    assert "To load** · estimated and simulated" in words(whole(app))
    assert "Simulate 0.5 to 2 times the load" not in words(app)


def test_quality_can_be_that_of_any_complete_replay(own_store: Path):
    store = Store.open(own_store)
    chosen, _ = fabricate.replay(store, trajectories=4), fabricate.replay(store, trajectories=2)
    fabricate.plan(store)
    app = open_page("capacity", quality=chosen)
    assert "smollm2-135m" in app.selectbox(key="choice of quality").options[1], "the model is named"
    assert "4 trajectories)" in app.success[0].value
    assert f"--from={chosen}" in words(app), "and new simulations take it too"


def test_without_the_switch_nothing_is_simulated_unasked(idle: Jobs):
    app = open_page("capacity")
    app.toggle(key="capacity automatic").set_value(False).run()
    app.slider(key="capacity keep").set_value(0.3).run()
    assert idle.list() == []
    click(app, "Simulate it")
    assert len(idle.list()) == 1


def test_the_result_of_the_job_takes_the_place_of_the_bounds(own_store: Path, idle: Jobs):
    app = open_page("capacity", run="new")
    click(app, "Simulate it")
    run = fabricate.plan(Store.open(own_store))
    (job,) = idle.list()
    write(job.folder / STATUS, replace(Status("done", now(), started=now()), ended=now(), run=run, exit_code=0))
    app.run()
    assert figures(whole(app))["GPUs needed · simulated"] == "14"
    assert "estimated bound" not in " ".join(figures(app))


def test_settings_become_the_command(idle: Jobs):
    app = open_page("capacity", run="new", workload="samples", gpu="h100")
    app.number_input(key="capacity new ttft").set_value(1.5)
    app.number_input(key="capacity new agents").set_value(100)
    app.selectbox(key="capacity new kv_dtype").set_value("fp8")
    app.text_input(key="capacity new retention").input("offload")
    app.run()
    click(app, "Simulate it")
    arguments = idle.list()[0].asked.arguments
    assert {"--workload=samples", "--gpu=h100", "--agents=100", "--kv-dtype=fp8", "--retention=offload"} < {*arguments}
    assert "--slo=ttft_p95=1.5" in arguments
    assert not any(word.startswith("--dtype") for word in arguments), "defaults are left out"


def test_a_setting_that_cannot_be_is_said_in_words():
    app = open_page("capacity", run="new")
    app.text_input(key="capacity new tool_wait").input("often").run()
    assert "--tool-wait" in whole(app).error[0].value.replace("\\", "")


def test_a_file_outside_of_the_store_is_not_read(tmp_path: Path):
    secret = tmp_path / "elsewhere.toml"
    secret.write_text("agents = 3")
    app = open_page("capacity", run="new")
    app.text_input(key="capacity new calibration").input(str(secret)).run()
    assert "outside of what may be read here" in whole(app).error[0].value.replace("\\", "")


def test_no_fleet_and_no_quality_are_said(own_store: Path):
    run = Store.open(own_store).begin("plan", {"slo": {"ttft_p95": 1.0}})
    rows = [{"policy": "full", "feasible": False}, {"policy": fabricate.DELAYED, "feasible": False}]
    run.add({"plans": [row | {"workload": "w", "model": "m", "gpu": "h200"} for row in rows]}, key="a")
    run.finish()
    text = words(open_page("capacity"))
    assert "No fleet of the sizes tried" in text
    assert "No quality was measured" in text


def test_the_report_can_be_taken_along(own_store: Path):
    fabricate.plan(Store.open(own_store))
    app = open_page("capacity")
    labels = [button.proto.label for button in app.get("download_button")]
    assert labels == ["Report as HTML", "As JSON"]
    assert json.dumps(fabricate.DELAYED)[1:-1] in words(app), "and the command line beside it"
