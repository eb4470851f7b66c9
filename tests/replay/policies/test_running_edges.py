"""Safe edges of the running and text-level policies: nothing crashes, and live memory is the footprint's."""

from __future__ import annotations

import pytest
import torch
from tiny import VOCABULARY, probe, tiny_model

from kvmill.replay.engine import BranchRun, replay
from kvmill.replay.forward import Forward
from kvmill.replay.policies.registry import parse_policies
from kvmill.traces.tokens import TokenSegment, TokenTrajectory

SIZES = {
    "empty tools": [("prefix", 5), ("assistant", 9), ("tool", 0), ("assistant", 9), ("tool", 0), ("assistant", 4)],
    "one token each": [("prefix", 1), *[("assistant", 1), ("tool", 1), ("user", 1)] * 4, ("assistant", 1)],
    "no assistant tokens": [("prefix", 7), *[("assistant", 0), ("tool", 40)] * 3],
    "no prefix": [("prefix", 0), ("assistant", 12), ("tool", 30), ("assistant", 12)],
    "all empty but one": [("prefix", 0), ("assistant", 0), ("user", 0), ("assistant", 0), ("tool", 1)],
    "users only": [("prefix", 4), ("assistant", 0), *[("user", 30), ("assistant", 0)] * 3],
    "more than a chunk": [("prefix", 3), ("assistant", 2), ("tool", 258), ("user", 40), ("assistant", 2)],
}
SPECS = [
    "truncate(SIZE)",
    "sink_window(SIZE)",
    "sink_window(SIZE,renumber=true,trigger=tokens:7,prefix=drop)",
    "random(SIZE,trigger=threshold:1)",
    "attention(SIZE,window=3)",
    "attention(SIZE,locality=normalised,prefix=drop)",
    "hybrid(SIZE)",
    "hybrid(SIZE,window=0,prefix=drop,protect=none)",
    "hybrid(SIZE,window=1000000,trigger=tokens:3)",
    "merge(SIZE)",
    "merge(SIZE,mass_bias=true,prefix=drop,protect=none,trigger=tokens:3)",
    "merge(SIZE,representative=medoid,space=post,layers=1,trigger=turn)",
]
FIXED = ["drop_tool_outputs(older_than=1)", "drop_tool_outputs", "hybrid(window=2,pool=0)", "hybrid(window=0,pool=1)"]


def text(name: str) -> TokenTrajectory:
    out: list[TokenSegment] = []
    turn = -1
    for number, (kind, size) in enumerate(SIZES[name]):
        closed = not out or out[-1].kind == "tool" or (out[-1].kind == "assistant" and kind != "tool")
        turn += closed
        ids = tuple((7 * number + 3 * i) % VOCABULARY for i in range(size))
        ends = tuple(sorted({0, size - 1})) if size else ()
        scored = (0, size) if kind == "assistant" else (0, 0)
        frame = ends if kind == "tool" else ()
        out.append(TokenSegment(kind, max(turn, 0), ids, ends, scored, min(1, size), ends[:1], frame))  # type: ignore[arg-type]
    return TokenTrajectory(name, "tiny", "test", tuple(out))


def runs(name: str, size: str) -> dict[str, BranchRun]:
    specs = [spec.replace("SIZE", size) for spec in SPECS] + FIXED
    found = replay(Forward(tiny_model()), text(name), parse_policies(specs), [probe()], 1)
    assert {str(run.policy): run.error for run in found if run.error} == {}
    return dict(zip(["full", *specs], found, strict=True))


@pytest.mark.parametrize("name", SIZES)
def test_any_lengths_at_a_fifth(name: str) -> None:
    found = runs(name, "keep=0.2")
    full = [turn.kv_rows for turn in found["full"].turns]
    for run in found.values():
        assert [turn.kv_rows <= rows for turn, rows in zip(run.turns, full, strict=True)] == [True] * len(full)


@pytest.mark.parametrize("name", ["one token each", "no assistant tokens"])
def test_keep_nothing_keeps_one_row_or_the_forced(name: str) -> None:
    for spec, run in runs(name, "keep=0").items():
        if spec in ("truncate(keep=0)", "sink_window(keep=0)"):
            kinds = [s.kind for s in text(name).segments for _ in s.ids]
            assert run.turns[-1].kv_rows == kinds.count("prefix") + max(1, kinds.count("user"))


@pytest.mark.parametrize("size", ["keep=1", "budget=100000"])
@pytest.mark.parametrize("name", ["one token each", "empty tools", "no prefix"])
def test_keep_all_or_more_than_there_is_changes_nothing(name: str, size: str) -> None:
    found = runs(name, size)
    full = found["full"]
    for spec, run in found.items():
        if spec in FIXED:
            continue
        assert [t.kv_rows for t in run.turns] == [t.kv_rows for t in full.turns], spec
        assert [t.counters.compactions for t in run.turns] == [0] * len(full.turns), spec
        for mine, theirs in zip(run.probes, full.probes, strict=True):
            assert mine.likelihoods == pytest.approx(theirs.likelihoods, abs=1e-4), spec
        assert run.kept is not None
        assert torch.equal(run.kept, torch.ones_like(run.kept))
