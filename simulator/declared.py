"""A workload declared by its laws, in TOML: `--workload load.toml`.

    name = "support"                 # else the file's name
    rate = 0.5                       # sessions per second, or `agents = 200`; else a flag says it
    burstiness = 2.0                 # coefficient of variation between arrivals; 1 (Poisson) unless given
    sessions = 400                   # how many are drawn from the laws; a simulation draws from these
    prefix_tokens = 4096             # system prompt, tools and first user message
    shared_prefix_tokens = 3072      # of it, the same in all sessions of a group; 0 unless given
    groups = 2                       # so many different shared prefixes; 1 unless given
    turns = {p50 = 12, p90 = 60, most = 150}
    assistant_tokens = {p50 = 150, p90 = 800}
    tool_tokens = [80, 300, 300, 4000]
    user_tokens = 0                  # a message of the user before each later turn; none unless given
    tool_wait_s = {p50 = 3.8, p90 = 28.9}

A law is a number (always that), a list (each value equally likely) or a table: log-normal with median `p50` and one of
`p75`, `p90`, `p95`, `p99`, cut to `least` and `most`. All draws are independent of each other: where turns, growth and
waits go together, give recorded sessions instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from ..errors import UserError, unknown
from ..toml import read_toml
from .session import SessionSpec
from .workload import Z75, Z90, Workload, assemble, lognormal, whole

LAWS = ("turns", "prefix_tokens", "assistant_tokens", "tool_tokens", "user_tokens", "tool_wait_s")
NUMBERS = ("sessions", "agents", "rate", "burstiness", "shared_prefix_tokens", "groups")
KNOWN = ("name", *LAWS, *NUMBERS)
SCORES = {"p75": Z75, "p90": Z90, "p95": 1.644854, "p99": 2.326348}
MOST_SESSIONS = 100_000
MOST_TURNS = 1_000_000  # of all sessions together
MOST_DRAWN = 1e12


def load_declared(path: str | Path, seed: int) -> Workload:
    """The workload of a TOML file, its sessions drawn from `seed`. UserError names the file and the key."""
    where = Path(path).name
    raw = read_toml(path, "workload")
    for key in raw:
        if key not in KNOWN:
            raise unknown("key", key, KNOWN, where)
    name = raw.get("name", Path(path).stem)
    if not isinstance(name, str):
        raise UserError(f"{where}: name = {name!r}: a text in quotes")
    return _drawn(raw, where, np.random.default_rng([seed, 7]), name)


def _drawn(raw: Mapping[str, Any], where: str, rng: np.random.Generator, name: str) -> Workload:
    count = _whole(raw, "sessions", where, 400, MOST_SESSIONS)
    shared = _whole(raw, "shared_prefix_tokens", where, 0, least=0)
    groups = _whole(raw, "groups", where, 1)
    turns = whole(_draws(raw, "turns", where, rng, count))
    if sum(turns) > MOST_TURNS:
        raise UserError(f"{where}: {sum(turns):,} turns in {count:,} sessions; at most {MOST_TURNS:,}")
    prefixes = whole(_draws(raw, "prefix_tokens", where, rng, count))
    if min(prefixes) <= shared and shared:
        raise UserError(
            f"{where}: prefix_tokens of {min(prefixes)} is not above shared_prefix_tokens; give it a `least`"
        )
    specs = []
    for turn_count, prefix in zip(turns, prefixes, strict=True):
        later = turn_count - 1
        outs = whole(_draws(raw, "assistant_tokens", where, rng, turn_count))
        tools = whole(_draws(raw, "tool_tokens", where, rng, later)) if later else []
        waits = [*_draws(raw, "tool_wait_s", where, rng, later).tolist(), 0.0] if later else [0.0]
        users = [0, *np.rint(_draws(raw, "user_tokens", where, rng, later, 0)).astype(int).tolist()]
        segments = assemble(prefix, outs, tools, users)
        specs.append(SessionSpec(segments, tuple(waits), shared=shared, group=int(rng.integers(groups))))
    rate = _number(raw, "rate", where) if "rate" in raw else None
    agents = _whole(raw, "agents", where, 1) if "agents" in raw else None
    if rate is not None and agents is not None:
        raise UserError(f"{where}: agents and rate exclude each other: a closed workload or an open one")
    burstiness = _number(raw, "burstiness", where) if "burstiness" in raw else 1.0
    notes = ("sessions drawn from the declared laws, all draws independent of each other",)
    return Workload(name, tuple(specs), agents, rate, notes, declared=dict(raw), burstiness=burstiness)


def _draws(
    raw: Mapping[str, Any], key: str, where: str, rng: np.random.Generator, size: int, default: float | None = None
) -> np.ndarray:
    """`size` draws of one law, 0 or more."""
    law = raw.get(key, default)
    if law is None:
        raise UserError(f"{where}: {key} is missing: a number, a list, or {{p50 = …, p90 = …}}")
    if isinstance(law, list) and law and all(_is_number(value) for value in law):
        return rng.choice(np.array(law, dtype=float), size)
    if isinstance(law, Mapping):
        return _lognormal(law, key, where, rng, size)
    if _is_number(law):
        return np.full(size, float(law))
    known = f"a number from 0 to {MOST_DRAWN:g}, a list of them, or {{p50 = …, p90 = …}}"
    raise UserError(f"{where}: {key} = {law!r}: {known}")


def _lognormal(law: Mapping[str, Any], key: str, where: str, rng: np.random.Generator, size: int) -> np.ndarray:
    for part in law:
        if part not in ("p50", "least", "most", *SCORES):
            raise unknown("key", part, ["p50", "least", "most", *SCORES], f"{where}: {key}")
    values = {part: _number(law, part, f"{where}: {key}") for part in law}
    high = [part for part in SCORES if part in values]
    if "p50" not in values or len(high) != 1 or not 0 < values["p50"] < values[high[0]]:
        raise UserError(f"{where}: {key}: a log-normal law needs p50 and a larger one of {', '.join(SCORES)}")
    drawn = lognormal(rng, values["p50"], values[high[0]], SCORES[high[0]], size)
    least, most = values.get("least", 0.0), values.get("most", float("inf"))
    if least > most:
        raise UserError(f"{where}: {key}: least is above most")
    return np.clip(drawn, least, min(most, MOST_DRAWN))


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= MOST_DRAWN


def _number(raw: Mapping[str, Any], key: str, where: str) -> float:
    if not _is_number(raw[key]):
        raise UserError(f"{where}: {key} = {raw[key]!r}: a number from 0 to {MOST_DRAWN:g}")
    return float(raw[key])


def _whole(raw: Mapping[str, Any], key: str, where: str, default: int, most: int = 1 << 40, least: int = 1) -> int:
    value = raw.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise UserError(f"{where}: {key} = {value!r}: a whole number from {least} to {most:,}")
    return value
