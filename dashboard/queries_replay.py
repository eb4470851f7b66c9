"""What the page Replay asks of the store: traces to choose from, their lengths, what earlier runs took."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from ..simulator.lengths import segments_of
from ..traces import record, samples
from ..traces.rows import trajectory_row, turn_rows
from ..traces.select import stream, take
from ..traces.store import Store
from .estimate import Length, Past, past_of
from .queries_traces import ingests
from .snapshot import rows_of

Rows = list[dict[str, Any]]
_RUNS = 5  # earlier runs that are looked at
_LONGEST = 5


def choices(store: Store) -> dict[str, str]:
    """What can be replayed, as `--traces` names it, with words: newest ingest first, then the bundled sets."""
    read = [row for row in ingests(store) if row["trajectories"]]
    out = {"last": "the newest ingest", "all": "everything in the store"} if read else {}
    out |= {name: f"bundled: {name} ({len(samples.load(name))})" for name in samples.SETS}
    out |= {row["ingest"]: f"{row['given']} ({row['trajectories']}), {row['ingest']}" for row in read}
    for column in ("source", "family"):
        found = rows_of(
            store,
            f"SELECT {column} AS name, count(DISTINCT trajectory_id) AS count FROM trajectories GROUP BY 1 ORDER BY 1",
        )
        out |= {f"{column}={row['name']}": f"{column} {row['name']} ({row['count']})" for row in found if row["name"]}
    return out


def lengths(store: Store, traces: str, limit: int | None) -> list[Length]:
    """Lengths of what `--traces … --limit …` would replay, in its order. UserError if nothing matches."""
    if traces in samples.SETS:
        return [_length(run) for run in take(samples.load(traces), limit)]
    ids, _ = stream(store, traces)
    rows = rows_of(
        store,
        """
        WITH chosen AS (
            SELECT trajectory_id AS id, any_value(family) AS family, any_value(turns) AS turns,
                   any_value(characters) AS characters
            FROM trajectories WHERE trajectory_id IN (SELECT unnest(?::VARCHAR[])) GROUP BY 1
        ), replies AS (
            SELECT trajectory_id AS id, turn, any_value(assistant_characters) AS characters FROM turns GROUP BY ALL
        )
        SELECT id, family, turns, chosen.characters,
               (SELECT coalesce(sum(characters), 0)::BIGINT FROM replies WHERE replies.id = chosen.id)
               AS reply_characters
        FROM chosen ORDER BY row_number() OVER (PARTITION BY family ORDER BY id), family LIMIT ?
        """,
        [ids, limit or len(ids)],
    )
    return sorted((Length(**row) for row in rows), key=lambda length: length.id)


def longest_segments(store: Store, chosen: list[Length]) -> list[Any]:
    """Segments of the few longest of them, for the policies' footprints; tokens by characters."""
    names = [length.id for length in sorted(chosen, key=lambda length: -length.characters)[:_LONGEST]]
    bundled = {name: run for name in names if (run := samples.named(name))}
    rows = rows_of(
        store,
        "SELECT any_value(record) AS record FROM trajectories "
        "WHERE trajectory_id IN (SELECT unnest(?::VARCHAR[])) GROUP BY trajectory_id",
        [[name for name in names if name not in bundled]],
    )
    return [segments_of(run) for run in [*bundled.values(), *(record.load(row["record"]) for row in rows)]]


def past(store: Store, model: str) -> Past:
    """What earlier complete replays with this model tell of speed and of characters per token."""
    decode = rows_of(
        store,
        "SELECT avg(decode_s_per_token) AS s FROM cells WHERE model = ? AND measure = 'latency' AND status = 'ok'",
        [model],
    )
    ratio = rows_of(
        store,
        "SELECT sum(t.characters)::DOUBLE / sum(c.logical_tokens) AS ratio FROM cells c JOIN trajectories t "
        "USING (trajectory_id) WHERE c.model = ? AND c.measure = 'quality' AND c.policy = 'full' AND c.status = 'ok' "
        "AND c.mode = 'teacher'",
        [model],
    )
    return past_of(finished(store, model), decode[0]["s"], ratio[0]["ratio"])


def finished(store: Store, model: str) -> Rows:
    """The newest complete replays with a model: mode, seconds, tokens fed (each per policy), seconds of timed cells."""
    found = [run for run in store.runs("replay", "complete") if run.config.get("model") == model and run.finished_at]
    out = []
    for run in found[:_RUNS]:
        (row,) = rows_of(
            store,
            "SELECT coalesce(sum(logical_tokens) FILTER (measure = 'quality'), 0)::DOUBLE AS fed, "
            "coalesce(sum(wall_s) FILTER (measure = 'latency'), 0)::DOUBLE AS timed_s "
            "FROM cells WHERE run_id = ? AND status = 'ok'",
            [run.run_id],
        )
        began, ended = (datetime.fromisoformat(when) for when in (run.created_at, run.finished_at or run.created_at))
        told = {key: run.config.get(key) for key in ("mode", "dtype")}
        out.append({**row, **told, "device": run.device, "seconds": (ended - began).total_seconds()})
    return out


def interrupted(store: Store) -> Rows:
    """Replays that stopped before their end and that nobody writes, newest first."""
    from .queries import newest_runs

    runs = newest_runs(store, limit=200)
    return [run for run in runs if run["kind"] == "replay" and run["state"] in ("incomplete", "killed")]


def _length(run: Any) -> Length:
    row = trajectory_row(run)
    reply = sum(turn["assistant_characters"] for turn in turn_rows(run))
    return Length(run.id, run.family, row["turns"], row["characters"], reply)
