"""Which tokens a policy kept: the tokens of a turn as text, what was dropped as dots, shares as digits below.

Why it went another way than the full cache is in `explain`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..console import table
from ..errors import UserError, unknown
from ..traces.recall import with_probes
from ..traces.store import Store
from .explain import explained, explained_text, one_line
from .recorded import by_id
from .results import find_run

Row = Mapping[str, Any]
WIDTH = 96
SHOWN_FROM = 0.5
LEGEND = (
    "first line: the text as it was fed; a token that fewer than {shown:.0%} of the layer-heads kept is dots\n"
    "digits below: share of layer-heads that kept the token, in tenths (9 = 90 % and more, blank = none);\n"
    "no digits where all kept all, or none kept any\n"
    "^ marks goal tokens: the system prompt, the first request, and what spells the right answer of a probe about this "
    "turn"
)


def inspect(
    store: Store, run_id: str | None, trajectory_id: str, turn: int | None = None, policy: str | None = None
) -> dict[str, Any]:
    """What each policy kept of a trajectory at its end, per turn and segment kind, or token by token for one turn.

    `turns` holds one entry per policy, turn and kind: tokens, mean share kept over layer-heads, mean share of the
    goal tokens (None where the turn has none). With `turn`, `tokens` holds every token of it per policy; its `goal` is
    `system`, `request`, `answer` (of a probe) or None. `explained` is what `explain.explained` returns.
    UserError on an unknown run, trajectory, turn or policy.
    """
    info = find_run(store, run_id, recorded=True)
    rows = store.query(
        "SELECT policy, turn, kind, position, text, share, mass_full FROM kept "
        "WHERE run_id = $1 AND trajectory_id = $2 ORDER BY policy, position",
        [info.run_id, trajectory_id],
    ).to_pylist()
    if not rows:
        known = store.query("SELECT DISTINCT trajectory_id FROM kept WHERE run_id = $1", [info.run_id]).to_pylist()
        if not known:
            raise UserError(f"run {info.run_id} holds no kept tokens: replay with --measure quality or both")
        raise unknown("trajectory", trajectory_id, [k["trajectory_id"] for k in known], f"run {info.run_id}")
    goals = Goals(
        goal_words(store, trajectory_id, str(info.config.get("probes", "recorded"))),
        goal_messages(store, trajectory_id),
    )
    by_policy: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by_policy[row["policy"]].append(row)
    order = [str(p) for p in info.config.get("policies", [])]
    names = sorted(by_policy, key=lambda name: order.index(name) if name in order else len(order))
    if policy is not None:
        if policy not in by_policy:
            raise unknown("policy", policy, names, f"run {info.run_id}")
        names = [policy]
    turns = {row["turn"] for row in rows}
    if turn is not None and turn not in turns:
        raise UserError(f"turn {turn} of {trajectory_id}: turns run from {min(turns)} to {max(turns)}")
    out: dict[str, Any] = {
        "run": info.run_id,
        "model": info.config.get("model"),
        "trajectory": trajectory_id,
        "turn": turn,
        "turns": [entry for name in names for entry in _turns(name, by_policy[name], goals)],
        "explained": explained(store, info.run_id, trajectory_id, {name: by_policy[name] for name in names}, turn),
    }
    if turn is not None:
        out["tokens"] = {
            name: [
                {key: row[key] for key in ("position", "kind", "text", "share")} | {"goal": goal}
                for row, goal in with_goals([r for r in by_policy[name] if r["turn"] == turn], goals)
            ]
            for name in names
        }
    return out


def inspect_text(found: Row, shown_from: float = SHOWN_FROM) -> str:
    """The same for a terminal."""
    head = f"Run {found['run']} ({found['model']}), trajectory {found['trajectory']}"
    if found["turn"] is None:
        columns = {
            "policy": "policy",
            "turn": "turn",
            "kind": "kind",
            "tokens": "tokens",
            "kept": "kept",
            "goal_kept": "goal tokens kept",
        }
        rows = [t | {k: _percent(t[k]) for k in ("kept", "goal_kept")} for t in found["turns"]]
        note = "kept: mean share of layer-heads that still hold a token at the end; see one turn with --turn T"
        return "\n".join([head, "", table(rows, columns), "", note, "", explained_text(found["explained"])])
    lines = [f"{head}, turn {found['turn']} (turns count from 0)", LEGEND.format(shown=shown_from)]
    for name, tokens in found["tokens"].items():
        mean = sum(t["share"] for t in tokens) / len(tokens)
        lines += ["", f"{name}: {_percent(mean)} of {len(tokens)} tokens kept"]
        for kind, part in _runs(tokens):
            lines += [f"[{kind}]", *_drawn(part, shown_from)]
    return "\n".join([*lines, "", explained_text(found["explained"])])


@dataclass(frozen=True, slots=True)
class Goals:
    """What the agent must not forget: `words` by turn, and the `messages` of the prefix that say what is wanted."""

    words: Mapping[int, set[str]]
    messages: Mapping[str, str]


def goal_words(store: Store, trajectory_id: str, probes: str = "recorded") -> dict[int, set[str]]:
    """By turn, the right answers of the probes whose fact stands there; empty if the trajectory is not at hand.

    `probes`: which ones the run asked, as `--probes`.
    """
    words: dict[int, set[str]] = defaultdict(set)
    for trajectory in by_id(store, [trajectory_id]).values():
        for probe in with_probes(trajectory, probes).probes:
            words[probe.fact_turn].add(probe.candidates[probe.answer])
    return dict(words)


def goal_messages(store: Store, trajectory_id: str) -> dict[str, str]:
    """The text of the `system` prompt and of the first `request`, as far as there are any."""
    found: dict[str, str] = {}
    for trajectory in by_id(store, [trajectory_id]).values():
        for message in trajectory.prefix:
            name = {"system": "system", "developer": "system", "user": "request"}.get(message.role)
            if name is not None:
                found.setdefault(name, message.content)
    return found


def _turns(name: str, rows: Sequence[Row], goals: Goals) -> Iterator[dict[str, Any]]:
    groups: dict[tuple[int, str], list[Row]] = defaultdict(list)
    for row in rows:
        groups[row["turn"], row["kind"]].append(row)
    for (turn, kind), members in groups.items():
        goal = [row["share"] for row, of in with_goals(members, goals) if of]
        yield {
            "policy": name,
            "turn": turn,
            "kind": kind,
            "tokens": len(members),
            "kept": sum(row["share"] for row in members) / len(members),
            "goal_kept": sum(goal) / len(goal) if goal else None,
        }


def with_goals(rows: Sequence[Row], goals: Goals) -> list[tuple[Row, str | None]]:
    """Each token, and which goal it is part of: found in the text, so words of several tokens count too."""
    text, starts = "", []
    for row in rows:
        starts.append(len(text))
        text += row["text"]
    spans: list[tuple[int, int, str]] = []
    for word in goals.words.get(rows[0]["turn"], set()) if rows else ():
        at = text.find(word)
        while at >= 0:
            spans.append((at, at + len(word), "answer"))
            at = text.find(word, at + 1)
    prefix = sum(len(row["text"]) for row in rows if row["kind"] == "prefix")
    for name, content in goals.messages.items():
        spans += [(low, high, name) for low, high in _lines_of(content, text[:prefix])]
    return [
        (row, next((name for low, high, name in spans if start < high and start + len(row["text"]) > low), None))
        for row, start in zip(rows, starts, strict=True)
    ]


def _lines_of(content: str, text: str) -> Iterator[tuple[int, int]]:
    """Where the lines of a message stand in the text, in order; a template may have changed the space around them."""
    after = 0
    for line in filter(None, map(str.strip, content.splitlines())):
        at = text.find(line, after)
        if at >= 0:
            after = at + len(line)
            yield at, after


def _runs(tokens: Sequence[Row]) -> Iterator[tuple[str, list[Row]]]:
    """Consecutive tokens of one segment kind."""
    part: list[Row] = []
    for token in tokens:
        if part and token["kind"] != part[0]["kind"]:
            yield part[0]["kind"], part
            part = []
        part.append(token)
    if part:
        yield part[0]["kind"], part


def _drawn(tokens: Sequence[Row], shown_from: float) -> list[str]:
    """Wrapped lines: text or dots, digits below, and a line of marks where there are goal tokens."""
    lines, text, digits, marks = [], "", "", ""
    uniform = {token["share"] for token in tokens} in ({1.0}, {0.0})

    def flush() -> None:
        nonlocal text, digits, marks
        lines.extend(line.rstrip() for line in (text, digits, marks) if line.strip())
        text = digits = marks = ""

    for token in tokens:
        spelled = one_line(token["text"])
        if len(text) + len(spelled) > WIDTH and text:
            flush()
        if token["share"] >= shown_from:
            text += spelled
        else:
            text += "".join(" " if c == " " else "·" for c in spelled)
        tenths = min(9, int(token["share"] * 10 + 1e-6))
        digits += (" " if uniform or token["share"] <= 0 else str(tenths)) * len(spelled)
        marks += ("^" if token["goal"] else " ") * len(spelled)
        if token["text"].endswith("\n"):
            flush()
    flush()
    return lines


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.0%}"
