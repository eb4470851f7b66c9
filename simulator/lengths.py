"""Token lengths of recorded trajectories: measured by a replay where one exists, else estimated from characters.

A replay's rows hold the logical context after each turn; what a turn added is split between its segments by
their characters. Without rows, 4 characters per token and 4 tokens of markup per message are assumed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import takewhile

from ..replay.policies.base import SegmentSize
from ..traces.store import Store
from ..traces.trajectory import Message, Trajectory
from .workload import segment

CHARACTERS_PER_TOKEN = 4.0
MARKUP_TOKENS = 4


def estimated(messages: Sequence[Message]) -> float:
    """Tokens of some messages, by their characters."""
    return sum(_characters(m) / CHARACTERS_PER_TOKEN + MARKUP_TOKENS for m in messages)


def _characters(message: Message) -> int:
    calls = sum(len(call.name) + len(call.arguments) for call in message.tool_calls)
    return len(message.content) + len(message.reasoning or "") + calls


def measured_contexts(store: Store) -> tuple[str | None, dict[str, dict[int, int]]]:
    """(model, `contexts_of`) of the newest complete replay; (None, {}) without one."""
    info = store.latest("replay")
    return (None, {}) if info is None else (info.config.get("model"), contexts_of(store, info.run_id))


def contexts_of(store: Store, run_id: str) -> dict[str, dict[int, int]]:
    """Logical tokens after each turn, by trajectory, as a replay counted them."""
    rows = store.query(
        "SELECT trajectory_id, turn, max(logical_tokens) AS tokens FROM turn_metrics "
        "WHERE run_id = $1 AND measure = 'quality' AND policy = 'full' AND logical_tokens IS NOT NULL GROUP BY ALL",
        [run_id],
    ).to_pylist()
    out: dict[str, dict[int, int]] = {}
    for row in rows:
        out.setdefault(row["trajectory_id"], {})[row["turn"]] = row["tokens"]
    return out


def segments_of(
    trajectory: Trajectory, measured: Mapping[int, int] | None = None, family_scale: float = 1.0
) -> tuple[SegmentSize, ...]:
    """Segments of one trajectory; `measured` is the logical context after each turn, `family_scale` tokens measured
    per token estimated on other trajectories of its family.
    """
    parts: list[list[tuple[str, float]]] = []
    for j, turn in enumerate(trajectory.turns):
        sizes = [("prefix", estimated(trajectory.prefix))] if j == 0 else []
        if turn.user:
            sizes.append(("user", estimated(turn.user)))
        sizes.append(("assistant", estimated([turn.assistant])))
        if turn.tools:
            sizes.append(("tool", estimated(turn.tools)))
        parts.append(sizes)
    out: list[SegmentSize] = []
    before = 0
    complete = measured is not None and all(j in measured for j in range(len(parts)))
    for j, sizes in enumerate(parts):
        scale = family_scale
        if complete and measured is not None:
            scale = (measured[j] - before) / sum(size for _, size in sizes)
            before = measured[j]
        out += [segment(kind, max(1, round(size * scale))) for kind, size in sizes]
    return tuple(out)


def family_scales(trajectories: Sequence[Trajectory], measured: Mapping[str, Mapping[int, int]]) -> dict[str, float]:
    """Per family, measured over estimated tokens on its measured trajectories."""
    sums: dict[str, list[float]] = {}
    for t in trajectories:
        contexts = measured.get(t.id)
        if contexts and len(contexts) == len(t.turns):
            pair = sums.setdefault(t.family, [0.0, 0.0])
            pair[0] += max(contexts.values())
            pair[1] += sum(s.tokens for s in segments_of(t))
    return {family: tokens / guess for family, (tokens, guess) in sums.items() if guess}


def shared_prompts(trajectories: Sequence[Trajectory], prefixes: Sequence[int]) -> list[tuple[int, int]]:
    """(shared tokens, group) of each trajectory, (0, 0) where it shares with none.

    Trajectories with the same tools and the same system messages share these: the share of their characters of a
    prefix of so many tokens, the least of it in the group.
    """
    groups: dict[str, list[int]] = {}
    for index, trajectory in enumerate(trajectories):
        leading = [[m.role, m.content] for m in _leading(trajectory)]
        if leading:
            groups.setdefault(json.dumps([leading, list(trajectory.tools)], default=str), []).append(index)
    found = [(0, 0)] * len(trajectories)
    for number, members in enumerate((m for m in groups.values() if len(m) > 1), start=1):
        shares = [
            int(prefixes[i] * estimated(_leading(trajectories[i])) / estimated(trajectories[i].prefix)) for i in members
        ]
        for i in members:
            found[i] = min(shares), number
    return found


def _leading(trajectory: Trajectory) -> list[Message]:
    return list(takewhile(lambda message: message.role in ("system", "developer"), trajectory.prefix))
