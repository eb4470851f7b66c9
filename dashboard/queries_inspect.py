"""What the page Inspector asks of the store: what each policy kept of one trajectory, turn by turn.

Shares of whole turns are averaged where the rows are; tokens are fetched for one turn, a page of them at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..replay.closed.results import is_closed
from ..replay.explain import DIVERGED_BY, explained
from ..replay.inspect import Goals, goal_messages, goal_words, with_goals
from ..traces.store import Store
from .snapshot import rows_of, snapshot

Row = dict[str, Any]
Rows = list[Row]
PAGE_TOKENS = 2000


def replays(store: Store) -> list[str]:
    """Replays of recorded turns that hold kept tokens: complete ones first, newest first."""
    runs = [run for run in store.runs("replay") if run.rows("kept") and not is_closed(run)]
    return [run.run_id for run in sorted(runs, key=lambda run: run.state != "complete")]


def trajectories(store: Store, run_id: str) -> Rows:
    """Trajectories of which a run holds tokens, with family, turns and tokens; by family and name."""
    return rows_of(
        store,
        """
        SELECT trajectory_id, any_value(family) AS family, max(turns) AS turns, max(logical_tokens) AS tokens
        FROM cells WHERE run_id = ? AND measure = 'quality' AND status = 'ok'
        GROUP BY trajectory_id ORDER BY family, trajectory_id
        """,
        [run_id],
    )


def turn_shares(store: Store, run_id: str, trajectory_id: str) -> Rows:
    """Per policy, turn and segment kind: tokens, and the mean share of layer-heads that hold them at the end."""
    return rows_of(
        store,
        """
        SELECT policy, turn, kind, count(*) AS tokens, avg(share) AS kept
        FROM kept WHERE run_id = ? AND trajectory_id = ?
        GROUP BY ALL ORDER BY policy, turn, min(position)
        """,
        [run_id, trajectory_id],
    )


def tokens(store: Store, run_id: str, trajectory_id: str, turn: int, policies: Sequence[str], page: int = 0) -> Row:
    """A page of the tokens of one turn: `tokens` by policy (position, kind, text, share, goal), and `pages`.

    `goal` is what `kvmill inspect` says it is: `system`, `request`, `answer` (of a probe) or None.
    """
    rows = rows_of(
        store,
        """
        SELECT policy, turn, kind, position, text, share FROM kept
        WHERE run_id = $1 AND trajectory_id = $2 AND turn = $3 AND list_contains($4, policy)
        ORDER BY policy, position
        """,
        [run_id, trajectory_id, turn, list(policies)],
    )
    by_policy = {policy: [row for row in rows if row["policy"] == policy] for policy in policies}
    first = next((members for members in by_policy.values() if members), [])
    goals = {row["position"]: goal for row, goal in with_goals(first, _goals(store, run_id, trajectory_id))}
    pages = max(1, -(-len(first) // PAGE_TOKENS))
    shown = slice(page * PAGE_TOKENS, (page + 1) * PAGE_TOKENS)
    return {
        "pages": pages,
        "tokens": {
            policy: [row | {"goal": goals.get(row["position"])} for row in members[shown]]
            for policy, members in by_policy.items()
        },
    }


def _goals(store: Store, run_id: str, trajectory_id: str) -> Goals:
    asked, kept = str(store.info(run_id).config.get("probes", "recorded")), snapshot(store)
    return Goals(goal_words(kept, trajectory_id, asked), goal_messages(kept, trajectory_id))


def departures(store: Store, run_id: str, trajectory_id: str, policies: Sequence[str]) -> Rows:
    """For each of `policies` but full: where it first departed from the full cache, in what, and what it had lost.

    The entries of `kvmill inspect`: `diverged_turn`, `diverged_by` (`by`: in words), `lost`, and each turn's work as
    `turns`.
    """
    rows = rows_of(
        store,
        """
        SELECT policy, turn, kind, position, text, share, mass_full FROM kept
        WHERE run_id = $1 AND trajectory_id = $2 AND list_contains($3, policy) ORDER BY policy, position
        """,
        [run_id, trajectory_id, [policy for policy in policies if policy != "full"]],
    )
    kept: dict[str, Rows] = {}
    for row in rows:
        kept.setdefault(row["policy"], []).append(row)
    found = explained(snapshot(store), run_id, trajectory_id, kept)
    return [entry | {"by": DIVERGED_BY.get(entry["diverged_by"])} for entry in found]


def actions(store: Store, run_id: str, trajectory_id: str) -> Rows:
    """How the action generated at each turn compares, by policy; empty unless the run was stepwise. Turns from 0."""
    return rows_of(
        store,
        """
        SELECT turn, policy, action_parsed, action_name_match, action_arguments_match,
               action_name_match_full, action_arguments_match_full, action_text_similarity_full, generated_tokens
        FROM turn_metrics
        WHERE run_id = ? AND trajectory_id = ? AND measure = 'quality' AND generated_tokens IS NOT NULL
        ORDER BY turn, policy
        """,
        [run_id, trajectory_id],
    )
