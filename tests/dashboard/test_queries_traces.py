"""Distributions, arrivals and losses are counted right: against the same computed here, row by row."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from statistics import fmean, pstdev, quantiles
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvmill.dashboard import charts_traces
from kvmill.dashboard import queries_traces as q
from kvmill.errors import UserError
from kvmill.traces.store import Store

RUN = "ingest-1"


def stored(where: Path, arrivals: list[float], tokens: list[int] | None = None) -> Store:
    store = Store.open(where)
    run = store.begin("ingest", {"paths": ["log.csv"]}, run_id=RUN)
    sizes = tokens or [100] * len(arrivals)
    rows = [
        {"request_id": f"r{n}", "source": "vidur", "arrival_s": at, "input_tokens": size, "output_tokens": 1}
        for n, (at, size) in enumerate(zip(arrivals, sizes, strict=True))
    ]
    run.add({"requests": rows}, key="a")
    run.finish()
    return store


@settings(max_examples=15)  # each makes a store
@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=40))
def test_bars_hold_every_value_once_and_between_their_ends(values: list[int]):
    with TemporaryDirectory() as folder:
        bars = q.distribution(stored(Path(folder), [0.0] * len(values), values), RUN, "input")
    assert sum(bar["count"] for bar in bars) == len(values)
    for bar in bars:
        high = 0.5 if bar["high"] is None else bar["high"]
        # Powers of √2 are no doubles: a value on the border belongs to either side.
        inside = [v for v in values if bar["low"] * (1 - 1e-12) <= v < high * (1 + 1e-12)]
        assert bar["count"] <= len(inside)
        assert bar["high"] is None or bar["high"] == pytest.approx(bar["low"] * math.sqrt(2))
    assert [bar["low"] for bar in bars] == sorted({bar["low"] for bar in bars})


def test_quantiles_are_those_of_the_values(tmp_path: Path):
    values = [3, 10, 4, 1, 500]
    found = q.quantiles(stored(tmp_path, [0.0] * 5, values), RUN, "input")
    assert found is not None
    assert (found["count"], found["sum"], found["least"], found["most"]) == (5, 518, 1, 500)
    assert found["p50"] == 4
    assert found["p90"] == pytest.approx(quantiles(values, n=10, method="inclusive")[-1])
    assert q.quantiles(Store.open(tmp_path), RUN, "wait") is None, "no wait was recorded: no figure, and no zero"


@settings(max_examples=15)
@given(st.lists(st.integers(0, 10**8).map(lambda ms: ms / 1000), min_size=2, max_size=40))
def test_arrivals_count_every_request_once_in_equal_intervals(times: list[float]):
    with TemporaryDirectory() as folder:
        bars = q.arrivals(stored(Path(folder), times), RUN)
    span = max(times) - min(times)
    if span == 0:
        assert bars == [], "no time, no rate"
        return
    assert len(bars) == 60
    assert sum(bar["requests"] for bar in bars) == len(times)
    assert bars[-1]["end_s"] == pytest.approx(span)
    assert sum(bar["per_s"] * (bar["end_s"] - bar["start_s"]) for bar in bars) == pytest.approx(len(times))


def test_rate_and_burstiness_have_their_definitions(tmp_path: Path):
    times = [0.0, 1.0, 1.5, 4.0, 4.25]
    found = q.arrival_figures(stored(tmp_path, times), RUN)
    assert found is not None
    gaps = [b - a for a, b in pairwise(times)]
    assert found["rate_per_s"] == pytest.approx(4 / 4.25)
    assert found["gap_cv"] == pytest.approx(pstdev(gaps) / fmean(gaps))
    assert found["longest_gap_s"] == 2.5


def test_requests_at_one_moment_have_no_rate(tmp_path: Path):
    found = q.arrival_figures(stored(tmp_path, [2.0, 2.0]), RUN)
    assert found is not None
    assert (found["rate_per_s"], found["gap_cv"]) == (None, None)


def test_losses_are_counted_by_trajectory_and_by_amount_and_said_in_words(tmp_path: Path):
    store = Store.open(tmp_path)
    run = store.begin("ingest", {"paths": []}, run_id=RUN)
    some = [["no_reward", "non_text_content:3"], ["no_reward"], ["non_text_content:4"], []]
    run.add({"trajectories": [{"trajectory_id": f"t{n}", "losses": losses} for n, losses in enumerate(some)]}, key="a")
    run.finish()
    found = {row["loss"]: row for row in q.losses(store, None)}
    assert (found["no_reward"]["trajectories"], found["no_reward"]["amount"]) == (2, 2)
    assert (found["non_text_content"]["trajectories"], found["non_text_content"]["amount"]) == (2, 7)
    assert found["no_reward"]["meaning"] == "a run without its reward"


def test_an_unknown_distribution_lists_those_there_are(tmp_path: Path):
    with pytest.raises(UserError, match="characters"):
        q.distribution(Store.open(tmp_path), None, "widths")


def test_zeros_are_drawn_left_of_the_smallest_value_and_named_so():
    rows = [{"low": 0.0, "high": None, "count": 2}, {"low": 4.0, "high": 5.66, "count": 3}]
    spec = charts_traces.distribution(rows, "input tokens", "requests").to_dict()
    zero, other = spec["data"]["values"]
    assert 0 < zero["low"] < zero["high"] < other["low"]
    assert zero["range"] == "none"
    assert (spec["encoding"]["x"]["title"], spec["encoding"]["y"]["title"]) == ("input tokens", "requests")


def test_given_names_files_and_shortens_long_lists(tmp_path: Path):
    store = Store.open(tmp_path)
    run = store.begin("ingest", {"paths": ["/data/a.jsonl", "s3://bucket/b.jsonl", "c", "d", "e"]})
    run.finish()
    (row,) = q.ingests(store)
    assert row["given"] == "a.jsonl, b.jsonl, c and 2 more"
    assert row["accepted"] is None, "not kept is not zero"
