"""The page Inspector: tokens of a turn as text, policies side by side, where they departed; never markup of a trace."""

from __future__ import annotations

from pathlib import Path

import fabricate
import kept_rows
import pytest
from pages import open_page, whole, words
from streamlit.testing.v1 import AppTest

from kvmill.dashboard import queries_inspect
from kvmill.traces.store import Store


@pytest.fixture(autouse=True)
def _from_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def html(app: AppTest) -> list[str]:
    return [element.proto.body for element in app.get("html")]


def test_an_empty_store_says_what_to_run(own_store: Path):
    app = open_page("inspector")
    assert "kvmill replay --traces samples --explain" in words(app)
    assert not own_store.exists(), "looking creates nothing"


def test_policies_stand_side_by_side_and_say_where_they_departed(own_store: Path):
    store = Store.open(own_store)
    run = kept_rows.kept_replay(store)
    app = open_page("inspector")
    assert f"run {run}" in words(app)
    _, boundary, delayed = html(app)
    assert "kept by 25% of layer-heads" in boundary
    assert "kept by 75% of layer-heads" in delayed
    assert words(app).count("First departs from full at turn 1") == 2
    app = open_page("inspector", turn="1")
    assert words(app).count("Here it first departs from full") == 2


def test_text_of_a_trace_stays_text(own_store: Path):
    kept_rows.kept_replay(Store.open(own_store))
    for body in html(open_page("inspector")):
        assert "<script" not in body
        assert "\u202e" not in body
    assert "&lt;script&gt;" in html(open_page("inspector"))[1]


def test_a_link_opens_trajectory_turn_and_policies(own_store: Path):
    store = Store.open(own_store)
    run = kept_rows.kept_replay(store)
    app = open_page("inspector", run=run, trajectory="t-1", turn="2", policies=fabricate.BOUNDARY)
    assert [box.value for box in app.selectbox] == [run, "t-1", "2"]
    assert app.multiselect[0].value == [fabricate.BOUNDARY], "as it is spelled in full"
    assert "positions 16 to 23" in html(app)[1]
    assert "turn 9" in words(open_page("inspector", turn="9")), "a stale link is said to be one"


def test_long_turns_are_paged(own_store: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(queries_inspect, "PAGE_TOKENS", 3)
    kept_rows.kept_replay(Store.open(own_store))
    app = open_page("inspector", turn="1")
    assert "positions 8 to 10" in html(app)[1]
    app.pagination[0].set_value(3).run()
    assert "positions 14 to 15" in html(whole(app))[1]


def test_what_was_lost_is_told_where_it_was_measured(own_store: Path):
    store = Store.open(own_store)
    kept_rows.kept_replay(store)
    assert "was not measured: replay with `--explain`" in words(open_page("inspector"))
    kept_rows.kept_replay(store, mass=True)
    lost = open_page("inspector").dataframe[-1].value
    assert list(lost["position"])[:2] == [7, 6]
    assert list(lost["token"])[1] == "⏎"


@pytest.mark.parametrize("damage", ["torn manifest", "missing file", "torn file"])
def test_a_damaged_store_is_said_in_words(damage: str, own_store: Path):
    store = Store.open(own_store)
    run = kept_rows.kept_replay(store)
    folder = store.folder(run)
    for entry in store.info(run).files:
        if damage == "missing file":
            (folder / entry.path).unlink()
        elif damage == "torn file":
            (folder / entry.path).write_bytes((folder / entry.path).read_bytes()[:20])
    if damage == "torn manifest":
        (folder / "manifest.json").write_text("{")
    app = open_page("inspector")
    assert app.error[0].value.startswith("The store cannot be read: ")
    assert "kvmill store check" in words(app)


def test_a_replay_without_kept_tokens_is_not_offered(own_store: Path):
    fabricate.replay(Store.open(own_store))
    assert "nothing can be inspected" in words(open_page("inspector"))
