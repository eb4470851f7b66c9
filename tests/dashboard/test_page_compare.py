"""The page Compare: which model measured what, who is recommended, and one view at a time."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

import fabricate
import pytest
from pages import open_page, whole, words
from streamlit.testing.v1 import AppTest

from kvmill.traces.store import Store


@pytest.fixture(autouse=True)
def _from_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def view(app: AppTest, name: str) -> AppTest:
    app.button_group(key="view").set_value(name).run()
    return whole(app)


def test_it_says_what_was_measured_with_what_and_warns_about_few_trajectories(own_store: Path):
    run = fabricate.replay(Store.open(own_store), failed=True)
    app = open_page("compare")
    text = words(app)
    assert f"measured with smollm2-135m, float32, teacher on cpu, run {run}" in text
    assert "Only 4 trajectories" in text
    assert "1 cells failed" in text
    figures = app.dataframe[-1].value.set_index("policy")
    assert figures.loc["full", "answer accuracy"] == 0.75
    assert figures.loc[fabricate.BOUNDARY, "peak KV (tokens)"] == 210
    assert figures.loc[fabricate.BOUNDARY, "trajectories"] == 4


def test_the_newest_complete_run_is_shown_and_then_the_one_that_is_chosen(own_store: Path):
    store = Store.open(own_store)
    older = fabricate.replay(store, trajectories=3)
    fabricate.replay(store, trajectories=5)
    fabricate.replay(store, trajectories=1, state="incomplete")
    app = open_page("compare")
    assert "Only 5 trajectories" in words(app)
    app.selectbox[0].set_value(older).run()
    assert "Only 3 trajectories" in words(app)
    assert whole(app).query_params["run"] == older


def test_a_link_opens_the_run_and_the_view_it_names(own_store: Path):
    store = Store.open(own_store)
    older = fabricate.replay(store, trajectories=3)
    fabricate.replay(store)
    app = open_page("compare", run=older, view="Families")
    assert "Only 3 trajectories" in words(app)
    assert "Quality by family · measured" in words(app)


def test_runs_are_offered_with_the_model_and_the_time_and_not_by_name_alone(own_store: Path):
    run = fabricate.replay(Store.open(own_store))
    (told,) = open_page("compare").selectbox[0].options
    assert re.match(r"20\d\d-\d\d-\d\d \d\d:\d\d · smollm2-135m · teacher · float32 · ", told)
    assert told.endswith(run)


def test_how_many_trajectories_and_probes_stand_beside_the_model(own_store: Path):
    fabricate.replay(Store.open(own_store), trajectories=12)
    text = words(open_page("compare"))
    assert "n = 12 trajectories, 48 probes" in text
    assert "Only" not in text


def test_the_closed_run_that_behaviour_is_of_can_be_chosen_and_linked_to(own_store: Path):
    store = Store.open(own_store)
    fabricate.replay(store)
    first, second = (acted(store, turns) for turns in (5, 6))
    app = open_page("compare", view="Behaviour")
    assert app.selectbox[1].value == second, "the newest"
    assert app.dataframe[0].value["extra turns (share of full's)"].iloc[1] == 0.5
    app = open_page("compare", view="Behaviour", closed=first)
    assert app.dataframe[0].value["extra turns (share of full's)"].iloc[1] == 0.25


def acted(store: Store, turns: int) -> str:
    """A closed-loop run in which one policy takes that many turns where full takes four."""
    run = store.begin("replay", {"model": "smollm2-135m", "policies": ["full", "te"], "mode": "closed"})
    same = {"mode": "closed", "measure": "quality", "status": "ok", "end_reason": "answered", "recorded_turns": 4}
    counts = ("generated_tokens", "calls", "calls_exact", "calls_searched", "calls_error", "repeated_calls")
    same |= dict.fromkeys((*counts, "near_repeats", "searches", "repeated_searches"), 0) | {"family": "registry"}
    cells = [
        same | {"cell_id": f"{policy}{n}", "trajectory_id": f"t{n}", "policy": policy, "turns": count}
        for n in range(3)
        for policy, count in (("full", 4), ("te", turns))
    ]
    run.add({"cells": cells}, key="cells")
    run.finish()
    return run.id


def test_what_is_damaged_is_listed_as_words_and_a_long_list_is_cut(own_store: Path):
    store = Store.open(own_store)
    for _ in range(12):
        run = store.begin("replay", {})
        run.finish()
        (store.folder(run.id) / "manifest.json").write_text("{")
    app = open_page("compare")
    assert "`kvmill store check`" in app.error[0].value, "a command is code"
    assert "finds (12)" in app.markdown[-1].value
    assert "and 2 more" in app.markdown[-1].value


def test_it_says_why_no_policy_is_recommended(own_store: Path):
    fabricate.replay(Store.open(own_store))
    assert "No policy is recommended: not enough trajectories" in words(open_page("compare"))


def test_a_recommended_policy_is_named_with_its_guarantee(own_store: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(fabricate.MEASURED, fabricate.BOUNDARY, (3, (70, 100), 210))
    fabricate.replay(Store.open(own_store), trajectories=40)
    said = open_page("compare").success[0].value
    assert said.startswith(f"`{fabricate.BOUNDARY}` is recommended (guarantee: ")


def test_every_view_draws_what_there_is_and_says_what_is_missing(own_store: Path):
    fabricate.replay(Store.open(own_store))
    app = open_page("compare")
    assert "KV over turns · measured" in words(app)
    assert "Latency was not measured in this run" in words(view(app, "Seconds per turn"))
    charts = len(app.get("vega_lite_chart"))
    assert "Quality by age of the fact · measured" in words(view(app, "Age of the fact"))
    assert len(app.get("vega_lite_chart")) == charts + 1
    assert "Quality by family · measured" in words(view(app, "Families"))
    app.selectbox[1].set_value("delta_nll").run()
    assert len(whole(app).get("vega_lite_chart")) == charts + 1
    assert "No closed-loop run of this model" in words(view(app, "Behaviour"))


def test_without_answers_the_loss_on_the_recorded_text_is_drawn(own_store: Path):
    store = Store.open(own_store)
    run = store.begin("replay", {"model": "m", "policies": ["full", "te"]})
    same = {"measure": "quality", "status": "ok", "scored_tokens": 10, "family": "a", "trajectory_id": "t"}
    cells = [same | {"policy": "full", "delta_nll": 0.0, "kv_tokens_peak": 100.0, "top1_agreement": 1.0}]
    cells += [same | {"policy": "te", "delta_nll": 0.1, "kv_tokens_peak": 50.0, "top1_agreement": 0.9}]
    run.add({"cells": cells}, key="a")
    run.finish()
    text = words(open_page("compare"))
    assert "Loss on the recorded text · measured" in text
    assert "no answer in this run has a known truth" in text
    assert "This run asked no probes" in words(view(open_page("compare"), "Age of the fact"))


def test_a_name_from_a_trace_is_no_markup(own_store: Path):
    store = Store.open(own_store)
    run = store.begin("replay", {"model": "m", "policies": ["full", "te"]})
    evil = "![x](http://evil.example/p.png)"
    same = {"measure": "quality", "status": "ok", "label_scorer": "choice", "probes": 4, "family": evil}
    same |= {"kv_tokens_peak": 100.0}
    cells = [
        same | {"cell_id": f"{policy}{n}", "trajectory_id": f"t{n}", "policy": policy, "answer_accuracy": 0.25}
        for policy in ("full", "te")
        for n in range(12)
    ]
    run.add({"cells": cells}, key="a")
    run.finish()
    app = open_page("compare")
    assert any("evil" in part.value for part in app.info)
    assert all("![" not in part.value for part in [*app.warning, *app.info, *app.success, *app.markdown])


def test_the_table_is_downloaded_as_csv_that_no_spreadsheet_obeys(own_store: Path, monkeypatch: pytest.MonkeyPatch):
    import streamlit

    given: list[str] = []
    monkeypatch.setattr(streamlit, "download_button", lambda _, data, *rest, **more: given.append(data))
    fabricate.replay(Store.open(own_store))
    open_page("compare")
    rows = list(csv.DictReader(io.StringIO(given[0])))
    assert [row["policy"] for row in rows] == list(fabricate.MEASURED)
    assert float(rows[0]["answer accuracy"]) == 0.75
    assert rows[2]["answer log-likelihood (nats)"] == "-2.0", "a number stays one"
