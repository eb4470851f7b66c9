"""Runs without labels, from a file to results: probes are made, asked and called what they are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny import save_tiny

from kvmill.errors import UserError
from kvmill.replay.results import summary
from kvmill.replay.start import replay_named
from kvmill.traces.store import Store

RESULT = (
    '{{"number": "HAT0{n}9", "leaves": "0{n}:00:00", "price": {n}21}}, '
    '{{"number": "HAT1{n}3", "leaves": "1{n}:30:00", "price": {n}76}}'
)
POLICY = "te(proxy=assistant,delay=1,keep=0.2)"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny(tmp_path_factory.mktemp("tiny-model")))


@pytest.fixture
def unlabelled(tmp_path: Path) -> str:
    messages: list[dict[str, object]] = [{"role": "system", "content": "You help."}, {"role": "user", "content": "fly"}]
    for n in range(3):
        call = {"id": f"c{n}", "type": "function", "function": {"name": "search", "arguments": "{}"}}
        messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": f"c{n}", "content": RESULT.format(n=n + 2)})
    messages.append({"role": "assistant", "content": "None of them."})
    path = tmp_path / "runs.jsonl"
    path.write_text(json.dumps({"messages": messages}) + "\n")
    return str(path)


def replay(store: Store, model: str, traces: str, **more: str) -> str:
    return replay_named(
        store, traces=traces, model=model, policies=[POLICY], dtype="float32", threads=1, progress=False, **more
    )  # type: ignore[arg-type]


def test_a_run_without_probes_gets_made_ones_by_age_and_kind(tmp_path: Path, model: str, unlabelled: str) -> None:
    store = Store.open(tmp_path / "store")
    run = replay(store, model, unlabelled)
    assert store.info(run).config["probes"] == "auto"
    found = summary(store, run)
    assert found["label_scorers"] == ["recall"]
    asked = store.query("select kind, age_turns, policy from probes").to_pylist()
    assert len(asked) == 2 * found["policies"][0]["n_probes"] == 16
    assert {row["age_turns"] for row in asked} == {1, 2, 3}
    assert {row["kind"] for row in asked} <= {"recall-id", "recall-date", "recall-number"}
    assert {group["kind"] for group in summary(store, run, "kind")["groups"]} == {row["kind"] for row in asked}
    scored = store.query("select distinct label_scorer from cells")["label_scorer"].to_pylist()
    assert scored == ["recall"]


def test_recorded_or_none_asks_nothing_of_it_and_is_another_cell(tmp_path: Path, model: str, unlabelled: str) -> None:
    store = Store.open(tmp_path / "store")
    cells = {}
    for which in ("auto", "recorded", "none"):
        run = replay(store, model, unlabelled, probes=which)
        rows = store.query("select cell_id, probes, answer_accuracy from cells where run_id = ?", [run]).to_pylist()
        cells[which] = {row["cell_id"] for row in rows}
        assert all((row["answer_accuracy"] is None) == (which != "auto") for row in rows)
        assert all((row["probes"] == 0) == (which != "auto") for row in rows)
    assert cells["recorded"] == cells["none"]
    assert not cells["auto"] & cells["none"]


def test_an_unknown_choice_is_an_error_before_anything_is_loaded(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="Known: auto, none, recorded"):
        replay(Store.open(tmp_path), "no-such-model", "samples", probes="all")
