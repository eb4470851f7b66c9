"""What is said of a request log holds against a count by hand, and figures carry their definitions."""

from __future__ import annotations

import json
import math
import random
import statistics
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvmill.traces import request_checks
from kvmill.traces.readers.mooncake import read
from kvmill.traces.request_checks import summarise, summary_text
from kvmill.traces.trajectory import Request


def request(arrival: float, blocks: list[int] | None = None, tokens: int | None = None, size: int = 4) -> Request:
    length = len(blocks or []) * size if tokens is None else tokens
    return Request(
        "", "x", arrival, length, 1, prefix_blocks=None if blocks is None else tuple(blocks), block_tokens=size
    )


def chained(contents: list[list[int]]) -> list[list[int]]:
    """Ids that cover everything before a block, as Mooncake's do."""
    ids: dict[tuple[int, ...], int] = {}
    return [[ids.setdefault(tuple(c[: n + 1]), len(ids)) for n in range(len(c))] for c in contents]


def prefix(rows: list[list[int]]) -> dict[str, Any]:
    return summarise(request(n, blocks) for n, blocks in enumerate(rows))["prefix"]


@given(st.lists(st.lists(st.integers(0, 2), max_size=6), min_size=1, max_size=12))
def test_the_hit_rate_is_the_longest_earlier_prefix(contents: list[list[int]]) -> None:
    hits = 0
    for n, blocks in enumerate(contents):
        shared = [len(shared_prefix(blocks, earlier)) for earlier in contents[:n]]
        hits += max(shared, default=0)
    for rows in (contents, chained(contents)):
        found = prefix(rows)
        total = sum(map(len, contents))
        assert found["hit_rate_blocks"] == (hits / total if total else None)
        assert found["hit_rate_tokens"] == found["hit_rate_blocks"]


def shared_prefix(one: list[int], other: list[int]) -> list[int]:
    length = 0
    while length < min(len(one), len(other)) and one[length] == other[length]:
        length += 1
    return one[:length]


@given(st.lists(st.lists(st.integers(0, 2), max_size=6), min_size=1, max_size=12))
def test_chained_ids_never_repeat_outside_a_prefix(contents: list[list[int]]) -> None:  # bug 14
    found = prefix(chained(contents))
    assert found["repeats_outside_a_prefix"] == 0
    assert found["hashes"] == "of the whole prefix"


def test_content_hashes_are_told_apart_and_what_they_would_claim_is_said() -> None:  # bug 14
    found = prefix([[1, 2, 3], [9, 2, 3], [1, 2, 8]])
    assert found["repeats_outside_a_prefix"] == 2
    assert found["hashes"] == "of each block alone"
    assert (found["hit_rate_blocks"], found["rate_by_membership"]) == (2 / 9, 4 / 9)
    text = " ".join(summary_text(summarise([request(n, b) for n, b in enumerate([[1, 2], [9, 2]])])))
    assert "of each block alone: 1 repeat outside a shared prefix" in text
    assert "would claim 25.0%" in text


def test_a_partial_last_block_counts_its_own_tokens() -> None:
    found = summarise([request(0, [1, 2], tokens=5), request(1, [1, 2], tokens=5)])["prefix"]
    assert (found["hit_rate_blocks"], found["hit_rate_tokens"]) == (0.5, 0.5)
    assert (found["last_block_partial"], found["full_blocks_only"], found["block_count_differs"]) == (2, 0, 0)


def test_a_number_of_blocks_is_held_against_the_length() -> None:  # bug 27
    rows = [request(0, [1, 2], tokens=3), request(1, [1, 2], tokens=9), request(2, [1], tokens=9), request(3, [], 0)]
    found = summarise(rows)["prefix"]
    assert (found["block_count_differs"], found["full_blocks_only"]) == (2, 1)
    assert "2 requests list a number of blocks that does not fit" in " ".join(summary_text(summarise(rows)))


def test_ids_beyond_doubles_are_counted_and_rounding_shows() -> None:  # bug 13
    exact = [14879255164371896291 + n for n in range(9)]
    assert prefix([exact])["ids_above_2_53"] == 9
    assert not prefix([exact])["ids_were_rounded"]
    rounded = [int(float(14879255164371896291 + 5000 * n)) for n in range(9)]
    assert prefix([rounded])["ids_were_rounded"]
    assert prefix([rounded])["hit_rate_blocks"] == 0


def test_ids_that_differ_in_the_last_bit_are_different() -> None:  # bug 13
    assert prefix([[2**64 - 1], [2**64 - 2], [2**63 + 1], [2**63]])["hit_rate_blocks"] == 0


def test_hit_rates_are_printed_with_their_definition(shared_data: Path) -> None:  # bug 12
    path = next((shared_data / "traces/mooncake-fast25").glob("conversation*.jsonl"))
    summary = summarise(read(json.loads(line)) for line in path.read_text().splitlines())
    found = summary["prefix"]
    assert found["blocks"] == 277_013
    assert found["repeats_outside_a_prefix"] == 0
    assert found["hit_rate_blocks"] == pytest.approx(0.3643, abs=1e-4)
    text = summary_text(summary)
    assert any("36.4% of 277,013 blocks" in line and request_checks.HIT_RATE in line for line in text)
    assert any("a coarse clock: 90% of the requests" in line for line in text)


def test_memory_is_bounded_and_the_text_says_how_far_it_went(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_checks, "MOST_BLOCKS", 10)
    summary = summarise(request(n, [3 * n, 3 * n + 1, 3 * n + 2]) for n in range(50))
    assert summary["prefix"]["requests"] == 4
    assert any("over the first 4 requests" in line for line in summary_text(summary))


def test_burstiness_is_that_of_the_gaps() -> None:
    dice = random.Random(1)
    gaps = [dice.expovariate(2.0) for _ in range(4000)]
    times = [sum(gaps[:1])]
    for gap in gaps[1:]:
        times.append(times[-1] + gap)
    summary = summarise(map(request, times))
    assert summary["gap_cv"] == pytest.approx(statistics.pstdev(gaps[1:]) / statistics.mean(gaps[1:]), rel=1e-9)
    assert summary["gap_cv"] == pytest.approx(1.0, abs=0.06)
    assert summary["rate_per_s"] == pytest.approx(2.0, rel=0.05)
    assert summary["ramp_up"] is None


@pytest.mark.parametrize("slow_s", [2_000, 6_000])
def test_a_slow_beginning_is_reported_with_both_rates(slow_s: int) -> None:  # bug 26
    dice = random.Random(2)
    slow = sorted(dice.uniform(0, slow_s) for _ in range(int(0.034 * slow_s)))
    fast = sorted(dice.uniform(slow_s, 20_000) for _ in range(int(3.17 * (20_000 - slow_s))))
    ramp = summarise(map(request, slow + fast))["ramp_up"]
    assert ramp is not None
    assert ramp["seconds"] == pytest.approx(slow_s, abs=160)
    assert 0.03 < ramp["rate_per_s"] < 0.1, "the bin in which it ends may hold some of what follows"
    assert ramp["later_rate_per_s"] == pytest.approx(3.17, rel=0.05)


def test_nothing_is_invented_for_short_or_odd_logs() -> None:
    assert summary_text(summarise([])) == ["no requests"]
    one = summarise([request(5.0)])
    assert (one["rate_per_s"], one["gap_cv"], one["ramp_up"], one["prefix"]) == (None, None, None, None)
    back = summarise([request(5.0), request(1.0), request(math.pi)])
    assert back["rows_out_of_order"] == 2
    assert json.dumps(back, allow_nan=False)
    assert "no block hashes" in summary_text(back)[-1]
