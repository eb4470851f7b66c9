"""What the page Traces asks of the store: ingests, what they hold, lengths, turns, waits and arrivals.

Distributions are counted where the rows are, so that a page draws bars and never a row per turn. `run` None means all
that was ingested. A damaged store raises UserError.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from ..errors import unknown
from ..traces.losses import LOSSES
from ..traces.manifest import RunInfo
from ..traces.rejects import REJECTS
from ..traces.store import Store
from .snapshot import rows_of

Row = dict[str, Any]
Rows = list[Row]
LENGTHS = {
    "characters": ("trajectories", "characters", "characters per trajectory (recorded)"),
    "turns": ("trajectories", "turns", "turns per trajectory (recorded)"),
    "assistant": ("turns", "assistant_characters", "characters of the model's reply, per turn (recorded)"),
    "tool": ("turns", "tool_characters", "characters of tool results, per turn (recorded)"),
    "wait": ("turns", "tool_wait_s", "seconds from one reply to the next request (recorded)"),
    "input": ("requests", "input_tokens", "input tokens per request (recorded)"),
    "output": ("requests", "output_tokens", "output tokens per request (recorded)"),
}
"""Distributions: table, column, and what it is with its unit."""
_BINS_PER_DOUBLING = 2
_ARRIVAL_BINS = 60


def ingests(store: Store) -> Rows:
    """Every ingest, newest first: what was given, and what became of it. Counts of older runs may be unknown."""
    return [
        {
            "ingest": info.run_id,
            "given": given(info),
            "state": info.state,
            "when (UTC)": info.created_at[:19].replace("T", " "),
            "accepted": info.config.get("accepted"),
            "rejected": info.config.get("rejected"),
            "duplicates": info.config.get("duplicates"),
            "trajectories": info.rows("trajectories"),
            "requests": info.rows("requests"),
        }
        for info in store.runs("ingest")
    ]


def given(info: RunInfo) -> str:
    """The names of what an ingest was pointed at."""
    names = [Path(str(path)).name or str(path) for path in info.config.get("paths", [])]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def sources(store: Store, run: str | None) -> Rows:
    """What is there by format found and family: trajectories with turns and characters, request logs with tokens."""
    where, values = _of(run)
    return rows_of(
        store,
        f"""
        SELECT source AS "format found", family, 'trajectories' AS holds, count(*) AS "how many",
               sum(turns)::BIGINT AS turns, sum(tool_calls)::BIGINT AS "tool calls",
               sum(characters)::BIGINT AS characters, NULL::BIGINT AS tokens,
               count(*) FILTER (WHERE already_compacted) AS "compacted when recorded"
        FROM trajectories WHERE {where} GROUP BY ALL
        UNION ALL
        SELECT source, NULL, 'requests', count(*), NULL, NULL, NULL, sum(input_tokens + output_tokens)::BIGINT, NULL
        FROM requests WHERE {where} GROUP BY ALL ORDER BY ALL
        """,
        [*values, *values],
    )


def distribution(store: Store, run: str | None, what: str) -> Rows:
    """Bars of one of LENGTHS: `low` (inclusive), `high` (exclusive) and `count`. Two bars per doubling.

    Zeros have a bar of their own, with `low` 0 and `high` None; nothing recorded gives no bars.
    """
    table, column, _ = _named(what)
    where, values = _of(run)
    bins = f"floor({_BINS_PER_DOUBLING} * log2({column}))"
    return rows_of(
        store,
        f"""
        SELECT CASE WHEN bin IS NULL THEN 0.0 ELSE pow(2, bin / {_BINS_PER_DOUBLING}.0) END AS low,
               CASE WHEN bin IS NULL THEN NULL ELSE pow(2, (bin + 1) / {_BINS_PER_DOUBLING}.0) END AS high,
               count(*) AS count
        FROM (SELECT CASE WHEN {column} > 0 THEN {bins} END AS bin
              FROM {table} WHERE {where} AND {column} IS NOT NULL)
        GROUP BY ALL ORDER BY low
        """,
        values,
    )


def values(store: Store, run: str | None, what: str, limit: int) -> list[float]:
    """The values of one of LENGTHS themselves, smallest first."""
    table, column, _ = _named(what)
    where, values = _of(run)
    found = rows_of(
        store,
        f"SELECT {column}::DOUBLE AS value FROM {table} WHERE {where} AND {column} IS NOT NULL "
        f"ORDER BY 1 LIMIT {int(limit)}",
        values,
    )
    return [row["value"] for row in found]


def quantiles(store: Store, run: str | None, what: str) -> Row | None:
    """Count, sum, mean, least, p50, p90, p99 and most of one of LENGTHS; None where nothing was recorded."""
    table, column, _ = _named(what)
    where, values = _of(run)
    (row,) = rows_of(
        store,
        f"""
        SELECT count({column}) AS count, sum({column})::DOUBLE AS sum, avg({column}) AS mean,
               min({column})::DOUBLE AS least, max({column})::DOUBLE AS most,
               quantile_cont({column}, 0.5)::DOUBLE AS p50, quantile_cont({column}, 0.9)::DOUBLE AS p90,
               quantile_cont({column}, 0.99)::DOUBLE AS p99
        FROM {table} WHERE {where}
        """,
        values,
    )
    return row if row["count"] else None


def arrivals(store: Store, run: str) -> Rows:
    """Requests and their rate in equal intervals of one log's time: `start_s`, `end_s`, `requests`, `per_s`."""
    found = rows_of(
        store,
        f"""
        WITH log AS (SELECT arrival_s FROM requests WHERE run_id = ?),
             span AS (SELECT min(arrival_s) AS first, (max(arrival_s) - min(arrival_s)) / {_ARRIVAL_BINS} AS width
                      FROM log)
        SELECT least({_ARRIVAL_BINS - 1}, floor((arrival_s - first) / width))::INT AS bin, any_value(width) AS width,
               count(*) AS requests
        FROM log, span WHERE width > 0 GROUP BY bin ORDER BY bin
        """,
        [run],
    )
    counts = {row["bin"]: row["requests"] for row in found}
    width = found[0]["width"] if found else 0.0
    return [
        {
            "start_s": n * width,
            "end_s": (n + 1) * width,
            "requests": (count := counts.get(n, 0)),
            "per_s": count / width,
        }
        for n in range(_ARRIVAL_BINS if found else 0)
    ]


def arrival_figures(store: Store, run: str) -> Row | None:
    """Requests, span, mean rate and burstiness (deviation of the gaps over their mean; Poisson is 1) of one log."""
    (row,) = rows_of(
        store,
        """
        WITH gaps AS (SELECT arrival_s, arrival_s - lag(arrival_s) OVER (ORDER BY arrival_s) AS gap
                      FROM requests WHERE run_id = ?)
        SELECT count(*) AS requests, max(arrival_s) - min(arrival_s) AS span_s,
               (count(*) - 1) / nullif(max(arrival_s) - min(arrival_s), 0) AS rate_per_s,
               stddev_pop(gap) / nullif(avg(gap), 0) AS gap_cv, max(gap) AS longest_gap_s
        FROM gaps
        """,
        [run],
    )
    return row if row["requests"] else None


def losses(store: Store, run: str | None) -> Rows:
    """What sources could not tell or readers could not keep: in how many trajectories, how much of it, in words.

    `amount` is characters for content, otherwise how often; 1 per trajectory where no count is given.
    """
    where, values = _of(run)
    found = rows_of(
        store,
        f"""
        SELECT split_part(loss, ':', 1) AS loss, count(*) AS trajectories,
               sum(coalesce(try_cast(split_part(loss, ':', 2) AS BIGINT), 1))::BIGINT AS amount
        FROM (SELECT unnest(losses) AS loss FROM trajectories WHERE {where}) GROUP BY 1 ORDER BY 2 DESC, 1
        """,
        values,
    )
    return [row | {"meaning": LOSSES.get(row["loss"], "")} for row in found]


def trajectories(store: Store, run: str | None, limit: int) -> Rows:
    """The first trajectories by id."""
    where, values = _of(run)
    return rows_of(
        store,
        f"SELECT trajectory_id AS trajectory, source AS format, family, turns, characters, tool_calls, probes, "
        f"label_scorer AS label FROM trajectories WHERE {where} ORDER BY 1 LIMIT {int(limit)}",
        values,
    )


def rejects(store: Store, run: str, limit: int) -> tuple[Path | None, Rows]:
    """The file of what an ingest refused, None where it refused nothing, and its first rows."""
    path = store.beside(run, REJECTS)
    if path is None:
        return None, []
    with path.open(encoding="utf-8") as file:
        return path, [json.loads(line) for line in islice(file, limit)]


def _named(what: str) -> tuple[str, str, str]:
    if what not in LENGTHS:
        raise unknown("distribution", what, LENGTHS)
    return LENGTHS[what]


def _of(run: str | None) -> tuple[str, Sequence[object]]:
    return ("true", []) if run is None else ("run_id = ?", [run])
