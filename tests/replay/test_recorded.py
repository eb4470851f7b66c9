"""Recorded runs are found again by id, wherever they came from."""

from __future__ import annotations

from pathlib import Path

from kvmill.replay.inspect import goal_words
from kvmill.replay.recorded import by_id
from kvmill.traces.ingest import ingest
from kvmill.traces.samples import load
from kvmill.traces.select import select
from kvmill.traces.store import Store

CHAT = '{"messages": [{"role": "user", "content": "Where?"}, {"role": "assistant", "content": "In Oslo."}]}\n'


def test_samples_and_ingested_runs_are_found_and_unknown_ids_left_out(tmp_path: Path) -> None:
    (tmp_path / "chat.jsonl").write_text(CHAT)
    store = Store.open(tmp_path / "store")
    ingest(store, [str(tmp_path / "chat.jsonl")])
    (ingested,) = select(store, "all")
    sample = load()[3]
    assert by_id(store, [ingested.id, "nobody", sample.id]) == {sample.id: sample, ingested.id: ingested}


def test_an_id_that_looks_like_a_file_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "chat.jsonl").write_text(CHAT)
    store = Store.open(tmp_path / "store")
    assert by_id(store, [str(tmp_path / "chat.jsonl")]) == {}
    assert store.runs() == []


def test_goal_words_are_the_right_answers_by_the_turn_of_their_fact(tmp_path: Path) -> None:
    sample = load()[0]
    words = goal_words(Store.open(tmp_path), sample.id)
    for probe in sample.probes:
        assert probe.candidates[probe.answer] in words[probe.fact_turn]
        assert any(probe.candidates[probe.answer] in tool.content for tool in sample.turns[probe.fact_turn].tools)
    assert goal_words(Store.open(tmp_path), "nobody") == {}
