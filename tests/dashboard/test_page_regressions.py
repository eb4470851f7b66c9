"""The page Regressions: the newest night in a sentence, the history, and two runs down to the turn."""

from __future__ import annotations

from pathlib import Path

import fabricate
import kept_rows
import pytest
from pages import open_page, whole, words

from kvmill.traces.store import Store

BAD = {"policy": fabricate.BOUNDARY, "family": "registry", "category": "REGRESSION", "blocks": True, "n": 12}
BAD |= {"detail": "ΔNLL +0.3", "metric": "delta_nll", "loss": 0.3, "low": 0.2, "high": 0.4, "margin": 0.02}
GOOD = {
    "policy": fabricate.BOUNDARY,
    "family": "registry",
    "category": "OK",
    "blocks": False,
    "detail": "same",
    "n": 12,
}


@pytest.fixture(autouse=True)
def _from_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_an_empty_store_says_that_no_night_was_gated_and_what_to_run(own_store: Path):
    text = words(open_page("regressions"))
    assert "No night was gated yet" in text
    assert "kvmill nightly --config nightly.toml" in text
    assert "kvmill replay --traces samples" in text
    assert not own_store.exists(), "looking creates nothing"


def test_the_newest_night_is_said_first(own_store: Path):
    store = Store.open(own_store)
    kept_rows.night(store, [GOOD])
    assert open_page("regressions").success[0].value.endswith(": green.")
    kept_rows.night(store, [BAD], "regression")
    said = open_page("regressions").error[0].value
    assert ": regression. REGRESSION of te" in said
    assert "0\\.3" in said
    kept_rows.night(store, [GOOD | {"category": "INSUFFICIENT", "n": 3, "detail": "too few"}], "undecided")
    assert "undecided. INSUFFICIENT of te" in open_page("regressions").warning[0].value


def test_the_runs_of_the_newest_night_are_the_ones_that_are_compared(own_store: Path):
    store = Store.open(own_store)
    runs = [kept_rows.kept_replay(store) for _ in range(4)]
    kept_rows.night(store, [GOOD], replay=runs[2], baseline_replay=runs[0])
    before, after = open_page("regressions").selectbox[1:3]
    assert (before.value, after.value) == (runs[0], runs[2])


def test_the_history_of_one_policy_and_family_shows_its_losses(own_store: Path):
    store = Store.open(own_store)
    for rows in ([GOOD], [BAD, {**BAD, "family": "operations"}]):
        kept_rows.night(store, rows)
    app = open_page("regressions")
    assert len(app.get("vega_lite_chart")) == 1
    app.selectbox[0].set_value(f"{fabricate.BOUNDARY} · registry").run()
    assert len(whole(app).get("vega_lite_chart")) == 2
    assert list(app.dataframe[0].value["category"]) == ["REGRESSION", "OK"], "newest first"


def test_a_family_from_a_trace_is_no_markup(own_store: Path):
    kept_rows.night(Store.open(own_store), [BAD | {"family": "![x](http://evil.example/p.png)"}], "regression")
    assert "![" not in open_page("regressions").error[0].value


def test_two_runs_are_compared_down_to_the_turn(own_store: Path):
    store = Store.open(own_store)
    older, newer = kept_rows.kept_replay(store), kept_rows.kept_replay(store, worse=0.5)
    app = open_page("regressions")
    assert [box.value for box in app.selectbox][:3] == [older, newer, "nll"]
    table = next(frame.value for frame in app.dataframe if "difference" in frame.value).set_index("policy")
    assert set(table.loc[fabricate.BOUNDARY, "difference"]) == {0.5}
    assert set(table.loc["full", "difference"]) == {0.0}
    assert "No turn differs in any figure but times." in words(app), "full comes first, and it is the same"
    app = open_page("regressions", policy=fabricate.BOUNDARY)
    assert "First differs at turn 1: NLL (nats per token)." in words(app)
    turns = app.dataframe[-1].value
    assert list(turns["NLL (nats per token), after"]) == [1.0, 1.5, 1.5]
    assert not any("TTFT" in name or "first token" in name for name in turns), "what was not measured has no column"


def test_runs_with_nothing_in_common_say_so(own_store: Path):
    store = Store.open(own_store)
    kept_rows.kept_replay(store)
    run = store.begin("replay", {"model": "m", "policies": ["random"]})
    run.add({"cells": [{"policy": "random", "status": "ok", "measure": "quality"}]}, key="a")
    run.finish()
    assert "no policy in common" in words(open_page("regressions"))


@pytest.mark.parametrize("damage", ["torn manifest", "missing file", "torn file"])
def test_a_damaged_store_is_said_in_words(damage: str, own_store: Path):
    store = Store.open(own_store)
    kept_rows.kept_replay(store)
    run = kept_rows.night(store, [GOOD])
    path = store.folder(run) / store.info(run).files[0].path
    if damage == "torn manifest":
        (store.folder(run) / "manifest.json").write_text("{")
    elif damage == "missing file":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:20])
    app = open_page("regressions")
    assert app.error[0].value.startswith("The store cannot be read: ")
    assert "kvmill store check" in words(app)
