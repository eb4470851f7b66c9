"""What `hybrid` keeps on the tiny model, against a token-by-token pool on a heap with activities in float64."""

from __future__ import annotations

import pytest
from families import family_model
from stepping import start, tokens_of, walk, watched
from tiny import trajectory

from kvmill.replay.forward import Forward
from kvmill.replay.lockstep import Lockstep
from kvmill.replay.policies.hybrid import Entry, Hybrid, pool_by_heap
from kvmill.replay.policies.hybrid_state import OWN, SCORE, HybridState
from kvmill.replay.policies.registry import parse_policy

SPECS = [
    "hybrid(keep=0.3)",
    "hybrid(keep=0.15,entities=rules+role,beta=0.5)",
    "hybrid(alpha=0,gamma=0,keep=0.25)",  # scores tie, so that last use and position decide
    "hybrid(alpha=0,gamma=0,beta=0,prefix=drop,keep=0.3)",
    "hybrid(window=20,pool=45,entities=none,gamma=0)",
    "hybrid(window=0,pool=60,trigger=tokens:50)",
    "hybrid(budget=70,window=64,protect=none)",  # users squeeze the window
    "hybrid(budget=30,trigger=turn,prefix=drop,base=0.05)",
]


class Pools:
    """Brute force: everything a token got since it came, and one heap per layer and head."""

    def __init__(self, step: Lockstep) -> None:
        self.step = step
        self.record = watched(step, self.check)
        state = step.branches[1].state
        assert isinstance(state, HybridState)
        self.state, self.rule = state, state.rule
        self.final: dict[tuple[int, int], dict[int, float]] = {}
        self.cuts = 0

    def use(self, key: tuple[int, int], token: int) -> int:
        """The last query that gave the token its even share; at first the token itself."""
        found = [q.position for q in self.record.queries[key] if q.weights.get(token, 0.0) * q.seen >= 1]
        return max([token, *found])

    def score(self, key: tuple[int, int], token: int) -> float:
        rule: Hybrid = self.rule
        got = [(q.weights.get(token, 0.0), q.kind) for q in self.record.queries[key]]
        text = self.step.trajectory.segments
        at = 0
        for segment in text:
            if token < at + len(segment.ids):
                break
            at += len(segment.ids)
        flagged = ("rules" in rule.entities and token - at in segment.entities) or (
            "role" in rule.entities and segment.kind in ("user", "assistant")
        )
        return (
            float(rule.base) * (segment.kind == "prefix")
            + float(rule.alpha) * sum(w for w, _ in got)
            + float(rule.beta) * flagged
            + float(rule.gamma) * sum(w for w, kind in got if kind == "assistant")
        )

    def check(self, tail, allowed, eviction) -> None:
        """The eviction's rows are the forced, the newest and the pool's."""
        self.cuts += 1
        window = self.rule.window_of(self.state.compactable)
        for layer in range(tail.shape[0]):
            for head in range(tail.shape[1]):
                key = (layer, head)
                tokens: list[int] = tail[layer, head].tolist()
                final = self.final.setdefault(key, {})
                outside, inside = tokens[: len(tokens) - window], tokens[len(tokens) - window :]
                forced = {t for t in tokens if self.state.is_forced[t]}
                for token in outside:
                    final.setdefault(token, self.score(key, token))
                recent = [t for t in inside if t not in forced]
                spare = allowed - len(forced)
                newest = recent[max(0, len(recent) - spare) :]
                entries: list[Entry] = [(final[t], self.use(key, t), t) for t in outside if t not in forced]
                pool = pool_by_heap([], entries, spare - len(newest))
                want = sorted(forced | set(newest) | {t for _, _, t in pool})
                rows = (eviction.index[layer, head] - eviction.start).tolist()
                assert [tokens[r] for r in rows] == want
                self.final[key] = {t: s for t, s in final.items() if t in want}


@pytest.mark.parametrize("spec", SPECS)
def test_kept_rows_are_those_of_the_heap(spec: str) -> None:
    step = start(spec, long_tool=90)
    pools = Pools(step)
    walk(step)
    assert pools.cuts >= 3


def test_prefix_tokens_have_a_head_start_that_lasts() -> None:
    step = walk(start("hybrid(prefix=drop,window=30,pool=60,protect=none)", users=False))
    for row in step.branches[1].index.flatten(0, 1).tolist():
        assert set(tokens_of(step, "prefix")) <= set(row)
    step = walk(start("hybrid(prefix=drop,window=30,pool=60,protect=none,base=0)", users=False))
    assert any(not set(tokens_of(step, "prefix")) <= set(row) for row in step.branches[1].index.flatten(0, 1).tolist())


def test_flags_of_rules_and_roles() -> None:
    for entities in ("rules", "role", "rules+role", "none"):
        step = walk(start(f"hybrid(keep=1,entities={entities})"))
        state = step.branches[1].state
        assert isinstance(state, HybridState)
        want: set[int] = set()
        at = 0
        for s in step.trajectory.segments:
            if "role" in entities and s.kind in ("user", "assistant"):
                want |= set(range(at, at + len(s.ids)))
            if "rules" in entities:
                want |= {at + offset for offset in s.entities}
            at += len(s.ids)
        assert set(state.is_entity.nonzero()[:, 0].tolist()) == want


@pytest.mark.parametrize("family", ["llama", "gemma4"])
def test_a_query_has_one_attention_to_give_however_many_layers_read_a_cache(family: str) -> None:
    policy = parse_policy("hybrid(prefix=drop,budget=5000)")
    step = walk(Lockstep(Forward(family_model(family)), trajectory(turns=3), [policy], seed=1))
    state = step.branches[0].state
    assert isinstance(state, HybridState)
    assert max(state.readers) == (2 if family == "gemma4" else 1)
    total = state.held.sum(-1)
    assert total[SCORE].flatten().tolist() == pytest.approx([step.logical] * total[SCORE].numel(), rel=1e-4)
    asked = len(tokens_of(step, "assistant"))
    assert total[OWN].flatten().tolist() == pytest.approx([asked] * total[OWN].numel(), rel=1e-4)
