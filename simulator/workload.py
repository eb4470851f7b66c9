"""`Workload`: sessions and how they arrive. What a source cannot tell is filled by flags and listed as *assumed*.

`closed`: N agents, each beginning a new session as soon as one ends. `open`: sessions arrive at a rate, in bursts or
not. `recorded`: sessions start when the log says, or more of them in the same way. Sessions are drawn whole, with
replacement, from the finite list given here, so that turns, growth and waits stay correlated as they are in it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..errors import UserError
from ..replay.policies.base import SegmentSize, split_turns
from .positions import Positions
from .session import SessionSpec

Z75, Z90 = 0.674490, 1.281552
LEAST_RATE = 1e-6  # sessions per second: below it a clock in double precision tells microseconds no more
MOST_RATE = 1e6  # no fleet that is simulated serves a hundredth of it
STRUCTURAL_TOKENS = 2  # opening and closing markup per segment, where there is no text to count it in


@dataclass(frozen=True, slots=True)
class Workload:
    """Sessions, and one of `agents`, `rate` (sessions per second) or recorded starts. `declared`: its laws.

    `burstiness` is the coefficient of variation of the gaps between the arrivals of an open workload (1: Poisson),
    `scale_load` the factor on the recorded sessions per second.
    """

    name: str
    sessions: tuple[SessionSpec, ...]
    agents: int | None = None
    rate: float | None = None
    assumed: tuple[str, ...] = ()
    lengths_from: str = "declared"
    declared: dict[str, Any] = field(default_factory=dict)
    burstiness: float = 1.0
    scale_load: float = 1.0

    def __post_init__(self) -> None:
        if not self.sessions:
            raise UserError(f"workload {self.name}: no sessions")
        if self.agents is not None and (not isinstance(self.agents, int) or self.agents < 1):
            raise UserError(f"--agents {self.agents}: a whole number, at least 1")
        if self.rate is not None and not LEAST_RATE <= self.rate <= MOST_RATE:
            raise UserError(f"--rate {self.rate:g}: sessions per second, from {LEAST_RATE:g} to {MOST_RATE:g}")
        if not 1e-3 <= self.burstiness <= 1e3:
            raise UserError("--burstiness: a coefficient of variation from 0.001 to 1,000; 1 is Poisson")
        if not 0 < self.scale_load < float("inf"):
            raise UserError("--scale-load: a factor above 0")
        if self.scale_load != 1 and self.kind != "recorded":
            raise ValueError("an open or closed workload is scaled by its rate or its agents: use at_load")

    @property
    def kind(self) -> str:
        """closed, open or recorded."""
        return "closed" if self.agents else "open" if self.rate else "recorded"

    def grown(self, extra_turns: float, window: int) -> Workload:
        """Every session with 1 + extra_turns times its turns (its own turns again), and as many tasks per second.

        Contexts grow with the turns, up to the model's `window`. A closed workload then has more agents at work: as
        many times more as its mean session lasts longer at the nominal decode speed (Little's law), which the window
        keeps below 1 + extra_turns.
        """
        if extra_turns <= 0:
            return self
        sessions = tuple(_longer(s, extra_turns, window) for s in self.sessions)
        agents = self.agents
        if agents is not None:
            before, after = (Positions(specs, window) for specs in (self.sessions, sessions))
            if before.usable:
                agents = round(agents * after.mean_session_s / before.mean_session_s)
        return replace(self, sessions=sessions, agents=agents)

    @property
    def sessions_per_s(self) -> float:
        """New sessions per second of an open workload, or over the recorded span."""
        return self.rate or self.scale_load * len(self.sessions) / max(1.0, *(s.start_s or 0.0 for s in self.sessions))

    def at_load(self, factor: float) -> Workload:
        """`factor` times as many agents, or as many sessions per second; gaps between them vary as they did."""
        if self.agents is not None:
            return replace(self, agents=max(1, round(self.agents * factor)))
        if self.rate is not None:
            return replace(self, rate=self.rate * factor)
        return replace(self, scale_load=self.scale_load * factor)

    def reshaped(self, growth: float, shared: bool) -> Workload:
        """With all segments but the prefix scaled by `growth`, and with or without the shared part of the prefix."""
        if growth == 1 and shared:
            return self
        return replace(
            self, sessions=tuple(replace(s.scaled(growth), shared=s.shared if shared else 0) for s in self.sessions)
        )


def _longer(spec: SessionSpec, extra: float, window: int) -> SessionSpec:
    turns = split_turns(spec.segments)
    again = turns[1:] or turns
    tools = [turn.tool for turn in turns if turn.tool]
    typical = tools[len(tools) // 2 : len(tools) // 2 + 1]
    segments, waits = list(spec.segments), list(spec.waits)
    total = sum(s.tokens for s in segments)
    for i in range(round(len(turns) * extra)):
        more = [s for s in again[i % len(again)].segments() if s.kind != "prefix"]
        if segments[-1].kind == "assistant":  # the last turn had no tool response to begin another turn from
            more = typical + more
        segments += more
        waits.append(spec.waits[(i + 1) % len(spec.waits)])
        if total > window:  # this turn begins beyond it: no more are needed to see that the session is cut
            break
        total += sum(s.tokens for s in more)
    return replace(spec, segments=tuple(segments), waits=tuple(waits))


def lognormal(rng: np.random.Generator, p50: float, high: float, z: float, size: int) -> np.ndarray:
    """Log-normal draws with median `p50` and the quantile of the standard score `z` at `high`."""
    return p50 * np.exp(rng.standard_normal(size) * math.log(high / p50) / z)


def whole(values: np.ndarray) -> list[int]:
    """Rounded token counts, 1 at least."""
    return [int(v) for v in np.maximum(1, np.rint(values))]


def segment(kind: Any, tokens: int) -> SegmentSize:
    """A segment of assumed markup: two structural tokens, as many closing."""
    structural = 0 if kind == "prefix" else min(STRUCTURAL_TOKENS, tokens)
    return SegmentSize(kind, tokens, protected=structural, closing=min(2, tokens))


def assemble(
    prefix: int, assistants: list[int], tools: list[int], users: list[int] | None = None
) -> tuple[SegmentSize, ...]:
    """Segments of a session: P, then per turn user (if any), assistant, tool (if any)."""
    out = [segment("prefix", prefix)]
    for j, tokens in enumerate(assistants):
        if users and users[j]:
            out.append(segment("user", users[j]))
        out.append(segment("assistant", tokens))
        if j < len(tools) and tools[j]:
            out.append(segment("tool", tools[j]))
    return tuple(out)


LONG_AGENTS = {
    "agents": 400,
    "prefix_tokens": 8192,
    "shared_prefix_tokens": 6144,
    "turns": "log-normal, p50 25, p75 104, cut at 150",
    "tool_tokens_per_turn": "log-normal, p50 700, p90 3,500",
    "assistant_tokens_per_turn": "log-normal, p50 150, p90 800",
    "tool_wait_s": "log-normal, p50 3.8, p90 28.9",
}


def long_agents(seed: int, sessions: int = 400) -> Workload:
    """The bundled workload of long agent sessions, drawn from its declared laws (`LONG_AGENTS`)."""
    rng = np.random.default_rng([seed, 2025])
    turns = np.clip(np.rint(lognormal(rng, 25, 104, Z75, sessions)), 1, 150).astype(int)
    specs: list[SessionSpec] = []
    for count in turns:
        tools = whole(lognormal(rng, 700, 3500, Z90, count))
        assistants = whole(lognormal(rng, 150, 800, Z90, count))
        waits = lognormal(rng, 3.8, 28.9, Z90, count)
        specs.append(SessionSpec(assemble(8192, assistants, tools[:-1]), tuple(waits.tolist()), shared=6144))
    assumed = (
        "prefix 8,192 tokens, 6,144 of it shared by all sessions; tool and assistant tokens per turn",
        "turns and tool waits follow the percentiles of published coding-agent traffic, as independent log-normals",
    )
    return Workload("long-agents", tuple(specs), agents=400, assumed=assumed, declared=dict(LONG_AGENTS))


def contexts(workload: Workload, window: int) -> dict[str, int]:
    """Percentiles of the logical context over all turns of all sessions, cut at the model's window."""
    ends: list[int] = []
    for spec in workload.sessions:
        total = 0
        for turn in split_turns(spec.segments):
            total += turn.tokens
            if total > window:
                break
            ends.append(total)
    if not ends:
        return {}
    return {f"p{q}": int(np.percentile(ends, q)) for q in (50, 90, 99)}
