"""Traces lie interleaved in a file: they are put together in bounded memory, and pieces are joined again at ingest."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from sources import Beside, items

from kvmill.traces.ingest import ingest
from kvmill.traces.readers import spans_held
from kvmill.traces.readers.openai_agents import FORMAT
from kvmill.traces.reading import Bad, Record
from kvmill.traces.select import select
from kvmill.traces.store import Store
from kvmill.traces.trajectory import Trajectory


def span(trace: str, turn: int) -> dict[str, Any]:
    """The call number `turn` of a trace, with its whole history."""
    said = [{"role": ("user", "assistant")[n % 2], "content": f"{trace} {n}"} for n in range(2 * turn + 1)]
    data = {
        "type": "generation",
        "input": said,
        "output": [{"role": "assistant", "content": f"{trace} {2 * turn + 1}"}],
    }
    times = {"started_at": f"2025-01-01T00:00:{2 * turn:02}Z", "ended_at": f"2025-01-01T00:00:{2 * turn + 1:02}Z"}
    return {
        "object": "trace.span",
        "id": f"{trace}{turn}",
        "trace_id": trace,
        "parent_id": None,
        "span_data": data,
        **times,
    }


def turns(made: list[Any]) -> list[tuple[int, int]]:
    return [(item.place, len(item.value.turns)) for item in made if isinstance(item.value, Trajectory)]


def test_interleaved_traces_are_one_run_each_at_the_place_they_begin() -> None:
    records = [span("a", 0), span("b", 1), span("a", 2), span("b", 0), span("a", 1)]
    assert turns(items(FORMAT, records)) == [(1, 3), (2, 2)]


def test_a_broken_record_between_them_is_passed_on() -> None:
    made = items(FORMAT, [span("a", 0), Bad(2, "torn", "{"), {"object": "x"}, span("a", 1)])
    assert turns(made) == [(1, 2)]
    assert [(item.place, item.reason[:24]) for item in made if item.value is None] == [
        (2, "torn"),
        (3, "neither a trace nor a sp"),
    ]


def test_too_much_held_lets_the_oldest_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spans_held, "MOST_CHARACTERS", 9000)
    records = [span(f"trace-{n}", turn) for turn in range(3) for n in range(6)]
    made = turns(items(FORMAT, records))
    assert sum(count for _, count in made) > 18, "pieces repeat what came before"
    assert len(made) > 6
    assert made[0][0] == 1


def test_pieces_of_a_trace_are_joined_again_at_ingest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spans_held, "MOST_CHARACTERS", 9000)
    records = [span(f"trace-{n}", turn) for turn in range(3) for n in range(6)]
    (tmp_path / "spans.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    store = Store.open(tmp_path / "store")
    report = ingest(store, [tmp_path / "spans.jsonl"])
    assert report.accepted == 6
    for run in select(store):
        assert [turn.started_s for turn in run.turns] == [0.0, 2.0, 4.0]
        assert [turn.tool_wait_s for turn in run.turns] == [1.0, 1.0, None]


def test_what_is_held_counts_texts_and_values_wherever_they_are() -> None:
    value = {"a": ["xx", {"b": "yyy"}, 1, None], "c": "z"}
    assert spans_held.characters(value) == 6 + 8 * spans_held.characters(None)


def test_thousands_of_tiny_spans_are_held_in_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spans_held, "MOST_CHARACTERS", 700_000)
    empty = {"object": "trace.span", "id": "s", "span_data": {"type": "custom"}}
    tracemalloc.start()
    records = (Record(n, {**empty, "trace_id": f"t{n}"}) for n in range(4_000))
    assert FORMAT.gather is not None
    count = sum(1 for _ in FORMAT.gather(iter(records), Beside()))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count == 4_000
    assert peak < 5_000_000
