"""Ids in a few bytes each: sets of numbers are sets, and equal rows of one log are told apart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvmill.traces import ids
from kvmill.traces.ids import Known, Numbers, RequestIds
from kvmill.traces.store import Store
from kvmill.traces.trajectory import Request

NUMBERS = st.integers(0, 2**64 - 1) | st.integers(0, 40)


@given(st.lists(NUMBERS), st.lists(NUMBERS), st.lists(NUMBERS))
def test_numbers_are_a_set(before: list[int], added: list[int], asked: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ids, "_RECENT", 4)
        numbers, plain = Numbers(np.array(before, np.uint64)), set(before)
        for number in added:
            numbers.add(number)
            plain.add(number)
            assert number in numbers
        for number in [*before, *added, *asked]:
            assert (number in numbers) == (number in plain)


def request(**values: object) -> Request:
    return replace(Request("", "log", 1.0, 10, 2, prefix_blocks=(1, 2), block_tokens=16), **values)  # type: ignore[arg-type]


def test_equal_rows_of_a_log_have_ids_of_their_own_and_the_same_ones_again() -> None:
    rows = [request(arrival_s=0.0), request(), request(), request(input_tokens=11), request()]
    first, second = RequestIds(), RequestIds()
    made = [first.with_id(row).id for row in rows]
    assert len(set(made)) == 5
    assert [second.with_id(row).id for row in rows] == made
    other_log = RequestIds()
    other_log.with_id(request(arrival_s=5.0))
    assert other_log.with_id(request()).id not in made
    with pytest.raises(ValueError, match="not JSON compliant"):
        first.with_id(request(arrival_s=float("nan")))


def test_request_ids_are_spelled_as_ever() -> None:
    assert RequestIds().with_id(request()).id == "log-e90e3f6191f0"


def test_known_ids_are_those_of_the_store_that_end_in_a_hash(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    run = store.begin("ingest", {})
    run.add({"requests": [{"request_id": "log-00ab12cd34ef", "source": "log"}]}, key="a")
    run.add({"trajectories": [{"trajectory_id": id} for id in ("chat-ffffffffffff", "registry-00")]}, key="b")
    run.finish()
    known = Known(store)
    assert "log-00ab12cd34ef" in known
    assert "chat-ffffffffffff" in known
    assert "chat-000000000000" not in known
    known.add("chat-000000000000")
    assert "chat-000000000000" in known
