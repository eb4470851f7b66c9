"""Sessions with subagents: two conventions of time, and block ids that mean something only in their session."""

from __future__ import annotations

from typing import Any

import pytest
from sources import items

from kvmill.traces.readers.weka import FORMAT
from kvmill.traces.request_checks import summarise
from kvmill.traces.trajectory import Request


def entry(t: float, ids: list[int], **more: Any) -> dict[str, Any]:
    return {"t": t, "type": "n", "in": 64 * len(ids), "out": 5, "hash_ids": ids, **more}


def session(id: str, *requests: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"id": id, "block_size": 64, "hash_id_scope": "local", "requests": list(requests), **more}


def made(*records: Any) -> list[Request]:
    return [item.value for item in items(FORMAT, list(records)) if isinstance(item.value, Request)]


@pytest.mark.parametrize("times", [(0.0, 2.5), (10.0, 12.5)])
def test_times_of_a_subagent_count_from_its_marker_or_from_the_session(times: tuple[float, float]) -> None:
    nested = {
        "t": 10.0,
        "type": "subagent",
        "agent_id": "a",
        "requests": [entry(times[0], [8]), entry(times[1], [8, 9])],
    }
    requests = made(session("s", entry(0, [1]), nested, entry(20, [1, 2], think_time=1.5)))
    assert [(r.session, r.turn, r.arrival_s) for r in requests] == [
        ("s", 0, 0.0),
        ("s/a", 0, 10.0),
        ("s/a", 1, 12.5),
        ("s", 1, 20.0),
    ]
    assert [r.tool_wait_s for r in requests] == [None, None, None, 1.5]


def test_equal_ids_of_two_sessions_are_no_shared_prefix() -> None:
    both = [session("a", entry(0, [1, 2])), session("b", entry(0, [1, 2]))]
    assert summarise(made(*both))["prefix"]["hit_rate_blocks"] == 0
    shared = [record | {"hash_id_scope": "global"} for record in both]
    assert summarise(made(*shared))["prefix"]["hit_rate_blocks"] == 0.5
    assert summarise(made(session("a", entry(0, [1, 2]), entry(1, [1, 2]))))["prefix"]["hit_rate_blocks"] == 0.5


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"requests": []}, "no requests"),
        ({"requests": [{"t": 0}]}, "in is None, not a number of tokens"),
        ({"block_size": 0}, "no id or no block_size"),
        ({"requests": [entry(0, [2**50])]}, "larger than any number of blocks"),
        ({"requests": [{"t": 0, "type": "subagent"}]}, "requests is not a list"),
    ],
)
def test_what_is_wrong_is_said(change: dict[str, Any], words: str) -> None:
    (item,) = items(FORMAT, [session("s", entry(0, [1])) | change])
    assert words in item.reason
