"""Every mix, delay and odd trajectory through the engine, footprints checked."""

from __future__ import annotations

import random

import pytest
from families import family_model
from tiny import VOCABULARY, segment

from kvmill.replay.engine import replay
from kvmill.replay.forward import Forward
from kvmill.replay.policies.base import SegmentSize
from kvmill.replay.policies.registry import parse_policies, parse_policy
from kvmill.traces.tokens import TokenSegment, TokenTrajectory

SHAPES = {
    "ordinary": [("assistant", 22), ("tool", 50), ("assistant", 21), ("tool", 41), ("assistant", 25), ("tool", 30)],
    "one token each": [("assistant", 1), ("tool", 1)] * 3,
    "assistants say nothing": [("assistant", 0), ("tool", 30), ("assistant", 0), ("tool", 25), ("assistant", 0)],
    "empty tools": [("assistant", 20), ("tool", 0), ("assistant", 12), ("tool", 40), ("assistant", 14), ("tool", 0)],
    "no tools": [("assistant", 20), ("assistant", 24), ("assistant", 1), ("assistant", 30)],
    "one turn": [("assistant", 20), ("tool", 30)],
}
MIXES = ("assistant", "tool", "assistant+tool", "assistant+boundary+tool", "tool+repeat", "boundary", "repeat+boundary")


def odd(shape: str) -> TokenTrajectory:
    draw, turn, out = random.Random(9), -1, []
    for kind, n in [("prefix", 13), *SHAPES[shape]]:
        turn += kind == "assistant"
        ids = [draw.randrange(VOCABULARY) for _ in range(n)]
        out.append(segment(kind, max(0, turn), ids) if n else TokenSegment(kind, turn, ()))  # type: ignore[arg-type]
    return TokenTrajectory(shape, "tiny", "test", tuple(out), prompts={"repeat": (7, 8, 9)})


@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_every_mix_and_delay_holds_exactly_its_footprint(shape: str) -> None:
    policies = [
        f"{name}(proxy={mix},delay={delay},keep={keep},protect={protect},normaliser={normaliser})"
        for number, mix in enumerate(MIXES)
        for name in ("te", "am")
        for delay, keep, protect, normaliser in [
            ((1, 0.2, "structure", "local"), (2, 0, "none", "global")),
            ((3, 0.5, "sinks:2+last:3", "global"), (1, 1, "structure", "local")),
            ((5, 0, "structure+last:1", "local"), (1, 0.3, "sinks:9+last:9", "local")),
        ][number % 3]
    ]
    runs = replay(Forward(family_model("llama")), odd(shape), parse_policies(policies))
    assert {str(run.policy): run.error for run in runs if run.error} == {}
    tokens = runs[0].turns[-1].kv_rows
    for run in runs[1:]:
        assert 13 < run.turns[-1].kv_rows <= tokens


def test_without_any_query_the_first_tokens_stay() -> None:
    runs = replay(
        Forward(family_model("llama")),
        odd("assistants say nothing"),
        parse_policies(["te(keep=0.2,protect=none)", "am(keep=0.2,protect=last:2)"]),
    )
    kept = [[t for t, share in enumerate(run.kept.tolist()) if share] for run in runs[1:] if run.kept is not None]
    assert kept[0] == [*range(13), *range(13, 19), *range(43, 48)]
    assert kept[1] == [*range(13), *range(13, 17), 41, 42, *range(43, 46), 66, 67]


def test_sizes_say_what_the_prompt_costs() -> None:
    text = [SegmentSize("prefix", 5), SegmentSize("assistant", 20, repeat_prompt=11)]
    assert parse_policy("te(proxy=repeat)").footprint(text)[0].transient_rows == 31
