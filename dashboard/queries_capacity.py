"""What the page Capacity asks of the store: plans that answer a question, fleets they looked at, fleets over time."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ..replay.policies.registry import parse_policy
from ..simulator.catalogue import CATALOGUE
from ..simulator.gpus import GPUS
from ..simulator.hardware import own_gpus
from ..simulator.sources import BUNDLED
from ..traces.manifest import RunInfo
from ..traces.store import Store
from . import queries, uploaded
from .capacity_setting import Setting
from .queries_traces import ingests
from .service import Service
from .snapshot import rows_of, snapshot

Row = dict[str, Any]
Rows = list[Row]
_LOOSE = ("replications", "statistic", "other_shapes", "policies", "policy", "plans", "answer", "run", "seed",
          "few_replications", "model_error_source")  # fmt: skip
_PRICE = ("price_per_hour", "price_source")
_OF_POLICY = (
    "sensitivity",
    "extra_turns",
    "kept",
    "compaction",
    "window",
)  # assumptions that are of a policy or of how long one looked


def identity(frame: Mapping[str, Any], *, priced: bool = True) -> str | None:
    """What a question is, in one text: alike for two answers to the same one. None where too little was recorded.

    Everything that an answer rests on is in it, down to the constants that were assumed, and neither policies nor
    replications; the price only if `priced`.
    """
    if "contexts" not in frame or "utilisation" not in frame:
        return None
    assumed = {key: value for key, value in (frame.get("assumptions") or {}).items() if key not in _OF_POLICY}
    loose = _LOOSE if priced else (*_LOOSE, *_PRICE)
    told = {key: value for key, value in frame.items() if key not in loose} | {"assumptions": assumed}
    return json.dumps(_rounded(told), sort_keys=True)


def _rounded(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(item) for item in value]
    return float(f"{value:.9g}") if isinstance(value, (int, float)) and not isinstance(value, bool) else value


def plans(store: Store) -> list[RunInfo]:
    """Runs that hold a plan, complete ones first, newest first."""
    named = queries.run_ids(store, "plan", "plans")
    found = {info.run_id: info for info in store.runs("plan")}
    return [found[name] for name in named]


def told(info: RunInfo) -> str:
    """A plan in a few words, for a choice."""
    config = info.config
    slo = ", ".join(f"{key} {limit:g} s" for key, limit in (config.get("slo") or {}).items())
    when = info.created_at[:16].replace("T", " ")
    machine = str(config.get("gpu") or "?").upper()
    return f"{config.get('workload') or '?'} · {config.get('model') or '?'} · {machine} · {slo} · {when}"


def answers(store: Store, runs: Sequence[RunInfo]) -> dict[str, Row]:
    """The row of each policy that these plans have, from the plan with most replications, else the newest.

    `replications` are added; `run_id` says which plan a row is of, and what it is paired with.
    """
    found: dict[str, Row] = {}
    for info in runs:
        count = info.config.get("replications") or 0
        for row in queries.plan_rows(snapshot(store), info.run_id):
            policy = str(parse_policy(row["policy"]))
            if policy not in found or count > found[policy]["replications"]:
                found[policy] = row | {"policy": policy, "replications": count}
    return dict(sorted(found.items(), key=lambda item: (item[0] != "full", -(item[1].get("gpus") or 10**9), item[0])))


def fleets(store: Store, rows: Sequence[Mapping[str, Any]]) -> Rows:
    """Requests per second within the promises, p95 latencies and memory by policy and fleet size, means of these plans.

    `*_low` and `*_high` are the least and largest of the replications.
    """
    runs, policies = [row["run_id"] for row in rows], [row["policy"] for row in rows]
    return rows_of(
        store,
        """
        SELECT policy, gpus, count(*) AS replications, avg(goodput_requests_per_s) AS goodput,
               min(goodput_requests_per_s) AS goodput_low, max(goodput_requests_per_s) AS goodput_high,
               avg(throughput_requests_per_s) AS throughput, geomean(ttft_p95_s) AS ttft_p95_s,
               min(ttft_p95_s) AS ttft_low_s, max(ttft_p95_s) AS ttft_high_s, geomean(tpot_p95_s) AS tpot_p95_s,
               min(tpot_p95_s) AS tpot_low_s, max(tpot_p95_s) AS tpot_high_s, avg(kv_used_share) AS kv_used_share
        FROM simulations
        WHERE (run_id, policy) IN (SELECT unnest(?::VARCHAR[]), unnest(?::VARCHAR[]))
        GROUP BY ALL ORDER BY policy, gpus
        """,
        [runs, policies],
    )


def over_time(store: Store, frame: Mapping[str, Any], wanted: Mapping[str, int]) -> Rows:
    """How fleets of `wanted` GPUs by policy went over time, from the newest simulation of each that was watched."""
    asked, out = identity(frame, priced=False), []
    if asked is None:
        return []
    watched = [
        info
        for info in store.runs("simulate", "complete")
        if info.rows("intervals") and info.seed == 0 and identity(info.config, priced=False) == asked
    ]
    for policy, gpus in wanted.items():
        for info in (info for info in watched if _spelled(info.config.get("policy")) == policy):
            rows = rows_of(
                store,
                "SELECT policy, gpus, seed, interval, start_s, end_s, kv_used_share, kv_held_share, batch, waiting "
                "FROM intervals WHERE run_id = ? AND gpus = ? "
                "AND seed = (SELECT min(seed) FROM intervals WHERE run_id = ?) ORDER BY interval",
                [info.run_id, gpus, info.run_id],
            )
            if rows:
                out += [row | {"policy": policy} for row in rows]
                break
    return out


def _spelled(policy: Any) -> str:
    return str(parse_policy(str(policy or "full")))


def alike(store: Store, runs: Sequence[RunInfo], frame: Mapping[str, Any]) -> list[RunInfo]:
    """The plans among `runs` that answer this question."""
    asked = identity(frame)
    return [info for info in runs if asked is not None and info.seed == 0 and identity(info.config) == asked]


def workloads(service: Service) -> dict[str, str]:
    """What can be planned for, as `--workload` names it, with words: bundled, stored, and uploaded declarations."""
    words = {"long-agents": "bundled: long agent sessions (declared)", "samples": "bundled: samples (recorded)"}
    out = {name: words.get(name, name) for name in BUNDLED}
    read = ingests(service.store)
    if any(row["trajectories"] for row in read):
        out["last"] = "the newest ingest"
        out["all"] = "all stored trajectories"
    for row in read:
        if row["trajectories"]:
            out[row["ingest"]] = f"traces: {row['given']} ({row['trajectories']}), {row['ingest']}"
        if row["requests"]:
            out[f"requests:{row['ingest']}"] = f"request log: {row['given']} ({row['requests']}), {row['ingest']}"
    return out | _uploaded(service, ".toml")


def models(service: Service) -> dict[str, str]:
    """Model geometries: the catalogue, and uploaded configurations."""
    return {name: name for name in sorted(CATALOGUE)} | _uploaded(service, ".json")


def gpus(service: Service) -> dict[str, str]:
    """GPUs: the catalogue, those of KVMILL_GPUS, and uploaded files."""
    return {name: name.upper() for name in (*GPUS, *own_gpus())} | _uploaded(service, ".toml")


def _uploaded(service: Service, suffix: str) -> dict[str, str]:
    found = uploaded.uploads(service.uploads)
    return {item.path: f"uploaded: {item.name}" for item in found if item.kept and item.name.endswith(suffix)}


def replays(store: Store) -> list[RunInfo]:
    """Complete replays, newest first: what quality can be taken from."""
    return store.runs("replay", "complete")


def told_replay(info: RunInfo) -> str:
    """A replay in a few words, for a choice: first when it began, which tells those of one model apart."""
    config, when = info.config, info.created_at[:16].replace("T", " ")
    count = len(config.get("trajectory_ids") or ())
    said = [when, config.get("model") or "an unnamed model", config.get("mode")]
    said += [f"{count} trajectories" if count else None, config.get("dtype"), info.run_id]
    return " · ".join(str(word) for word in said if word)


def setting_of(info: RunInfo | None) -> Setting:
    """The question of a stored plan, as far as its record tells; the defaults without one."""
    if info is None:
        return Setting()
    shape = CATALOGUE.get(str(info.config.get("model")))
    return Setting.of_config(info.config, shape.max_positions if shape else None)
