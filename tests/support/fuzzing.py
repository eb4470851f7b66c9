"""Random policies and random trajectories, edges on purpose: for tests that nobody's own examples would cover."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from tiny import PROMPTS, VOCABULARY, segment

from kvmill.errors import UserError
from kvmill.replay.policies.base import Policy
from kvmill.replay.policies.options import in_order
from kvmill.replay.policies.registry import POLICIES, parse_policy
from kvmill.traces.tokens import TokenSegment, TokenTrajectory

_RATIOS = "0 0.001 0.05 0.2 0.5 0.77 0.999 1"
VALUES = {
    name: words.split()
    for name, words in {
        **dict.fromkeys(("keep", "keep_assistant", "keep_tool", "keep_user", "loss"), _RATIOS),
        "alpha": "0 1 3",
        "base": "0 100",
        "beta": "0 1",
        "beta_limit": "0 3 10",
        "budget": "1 2 17 40 100 333 5000",
        "chunk": "8 9 40 2048",
        "covariance": "true false",
        "decay": "0 0.5 0.99 1",
        "delay": "0 1 2 3 9",
        "distance": "1 16 500",
        "entities": "rules role rules+role none",
        "epsilon": "0 0.02 1",
        "fallback": "heldout none",
        "gamma": "0 4",
        "granularity": "head token",
        "kernel": "1 3 5 7",
        "layers": "all 0 0-1 1-5",
        "locality": "none distance normalised",
        "mass_bias": "true false",
        "min_tokens": "0 5 40 1000",
        "mix": "0 0.07 1",
        "n_future": "1 16 512",
        "normaliser": "local global",
        "older_than": "1 2 3 9",
        "pool": "0 1 10 60",
        "prefix": "keep drop",
        "protect": "none structure sinks:1 last:1 structure+sinks:4+last:16 sinks:500 last:500 sinks:3+last:2",
        "proxy": "assistant boundary repeat tool assistant+boundary tool+assistant boundary+repeat repeat+tool "
        "assistant+boundary+repeat+tool tool+repeat+boundary+assistant",
        "reduction": "rms mean max",
        "renumber": "true false",
        "representative": "centroid medoid",
        "ridge": "0.001 0.000001 1000",
        "scope": "uniform",
        "sinks": "0 1 4 40",
        "space": "pre post",
        "threshold": "0 0.5 1",
        "trigger": "turn threshold:1 threshold:1.1 threshold:3 tokens:1 tokens:7 tokens:50 tokens:256 tokens:1000",
        "vnorm": "true false",
        "weighting": "none share",
        "window": "0 1 2 3 8 30 64 700",
    }.items()
}
"""Texts of every option of every policy, the ends of their ranges among them."""


def random_policy(draw: Random, name: str | None = None) -> Policy:
    """A policy with about a third of its options given, of those combinations that are no usage error."""
    while True:
        cls = POLICIES[name or draw.choice(list(POLICIES))]
        given = [f"{f.name}={draw.choice(VALUES[f.name])}" for f in in_order(cls) if draw.random() < 0.35]
        try:
            return parse_policy(f"{cls.name}({','.join(given)})" if given else cls.name)
        except UserError:
            continue


def random_text(draw: Random, name: str = "fuzz", longest: int = 80) -> TokenTrajectory:
    """One to six turns: empty segments, single tokens, lengths about the grids; several user messages, or no tool."""
    out = [_segment(draw, "prefix", 0, longest)] if draw.random() < 0.95 else []
    users = draw.random() < 0.5
    for turn in range(draw.randrange(1, 7)):
        while users and draw.random() < 0.35:
            out.append(_segment(draw, "user", turn, longest))
        out.append(_segment(draw, "assistant", turn, longest))
        if draw.random() < 0.75:
            out.append(_segment(draw, "tool", turn, longest))
    return TokenTrajectory(name, "tiny", "test", tuple(out), prompts=PROMPTS)


def _segment(draw: Random, kind: str, turn: int, longest: int) -> TokenSegment:
    count = draw.choices(
        [0, 1, draw.randrange(2, 5), draw.randrange(5, longest), draw.choice((49, 50, 51, 255, 256, 257, 513))],
        [1, 3, 3, 12, 1],
    )[0]
    if not count:
        return TokenSegment(kind, turn, ())  # type: ignore[arg-type]
    made = segment(kind, turn, [draw.randrange(VOCABULARY) for _ in range(count)])
    if draw.random() < 0.3:
        structural = tuple(sorted(draw.sample(range(count), draw.randint(0, min(count, 9)))))
        made = replace(made, structural=structural, closing=draw.randint(1, min(4, count)))
    if kind == "tool" and draw.random() < 0.3:
        made = replace(made, frame=tuple(sorted(draw.sample(range(count), draw.randint(0, count)))))
    return made
