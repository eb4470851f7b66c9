"""From `--workload` and its flags to a `Workload`.

`long-agents` and `samples` are bundled, `FILE.toml` declares laws; anything else is a request log (`requests`: the
newest ingested, `requests:SELECTION`, or a path) or a selection of stored trajectories. What the source lacks and no
flag fills is a usage error.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ..errors import UserError, unknown
from ..traces.store import Store
from ..traces.trajectory import Request, Trajectory
from .declared import load_declared
from .lengths import family_scales, measured_contexts, segments_of, shared_prompts
from .requestlog import sessions as sessions_of
from .session import SessionSpec
from .workload import Z90, Workload, lognormal, long_agents

BUNDLED = ("long-agents", "samples")
DEFAULT_AGENTS = 400
DEFAULT_WAIT = (3.8, 28.9)
MOST_SCALE = 1e6
_SECONDS = r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)"
_WAIT = re.compile(f"lognormal:{_SECONDS},{_SECONDS}")


@dataclass(frozen=True, slots=True)
class Fill:
    """The flags that fill what a source lacks. None: not given."""

    agents: int | None = None
    rate: float | None = None
    tool_wait: str | None = None
    scale_tokens: float | None = None
    prefix_tokens: int | None = None
    burstiness: float | None = None
    scale_load: float | None = None

    def __post_init__(self) -> None:
        if self.agents is not None and self.rate is not None:
            raise UserError("--agents and --rate exclude each other: a closed workload or an open one")
        if self.scale_tokens is not None and not 0 < self.scale_tokens <= MOST_SCALE:
            raise UserError(f"--scale-tokens: a factor above 0, up to {MOST_SCALE:,.0f}")
        if self.prefix_tokens is not None and self.prefix_tokens < 1:
            raise UserError("--prefix-tokens: at least 1")
        if self.scale_load is not None and not 0 < self.scale_load <= MOST_SCALE:
            raise UserError(f"--scale-load: a factor above 0, up to {MOST_SCALE:,.0f}")


def find_workload(name: str, fill: Fill | None = None, *, store: Store | None = None, seed: int = 0) -> Workload:
    """The workload of that name with the flags applied. UserError on an unknown name, or on what is missing."""
    fill = fill or Fill()
    if name == "long-agents":
        _no_prefix(fill, name)
        return finish(long_agents(seed), fill, seed)
    if name.endswith(".toml"):
        _no_prefix(fill, name)
        return finish(load_declared(name, seed), fill, seed)
    store = store or Store.open()
    if name == "samples":
        from ..traces.samples import load

        _no_prefix(fill, name)
        return finish(from_trajectories(name, load(), store, bundled=True), fill, seed)
    label = Path(name).name if Path(name).exists() else name
    requests = stored_requests(name, store)
    if requests:
        return finish(from_requests(label, requests, fill), fill, seed)
    trajectories = stored_trajectories(name, store)
    _no_prefix(fill, label)
    return finish(from_trajectories(label, trajectories, store), fill, seed)


def from_trajectories(
    name: str, trajectories: Sequence[Trajectory], store: Store, *, bundled: bool = False
) -> Workload:
    """One session per trajectory that has a turn; lengths measured by replay where they are, else estimated."""
    usable = [t for t in trajectories if t.turns]
    if not usable:
        raise UserError(f"workload {name}: no trajectory with a turn")
    model, contexts = measured_contexts(store)
    scales = family_scales(usable, contexts)
    lengths = [segments_of(t, contexts.get(t.id), scales.get(t.family, 1.0)) for t in usable]
    shares = shared_prompts(usable, [segments[0].tokens for segments in lengths])
    specs = tuple(
        SessionSpec(
            segments,
            tuple(float("nan") if turn.tool_wait_s is None else turn.tool_wait_s for turn in t.turns),
            shared=shared,
            group=group,
        )
        for t, segments, (shared, group) in zip(usable, lengths, shares, strict=True)
    )
    counted = sum(t.id in contexts for t in usable)
    if counted:
        source = f"measured with {model} on {counted} of {len(usable)} trajectories" + (
            "" if counted == len(usable) else ", the rest estimated from their characters at the same ratio per family"
        )
    else:
        source = "estimated at 4 characters per token and 4 tokens per message"
    return Workload(name, specs, agents=DEFAULT_AGENTS if bundled else None, lengths_from=source)


def from_requests(name: str, requests: Sequence[Request], fill: Fill) -> Workload:
    """Sessions of a request log, at their recorded starts unless a flag says otherwise."""
    specs, notes = sessions_of(requests, fill.prefix_tokens)
    return Workload(name, tuple(specs), assumed=tuple(notes), lengths_from="request log")


def finish(load: Workload, fill: Fill, seed: int) -> Workload:
    """Apply the flags; what they fill is listed as assumed. UserError naming all that is still missing."""
    assumed = list(load.assumed)
    _require_times(load, fill)
    load = _with_waits(load, fill, seed, assumed)
    if fill.scale_tokens is not None and fill.scale_tokens != 1:
        load = replace(load, sessions=tuple(s.scaled(fill.scale_tokens) for s in load.sessions))
        assumed.append(f"all segments but the prefix scaled by {fill.scale_tokens:g}")
    return _arriving(load, fill, assumed)


def _arriving(load: Workload, fill: Fill, assumed: list[str]) -> Workload:
    agents, rate = load.agents, load.rate
    if fill.agents is not None or fill.rate is not None:
        agents, rate = fill.agents, fill.rate
    burstiness = load.burstiness if fill.burstiness is None else fill.burstiness
    if burstiness != 1 and rate is None:
        raise UserError("--burstiness is of the arrivals of an open workload: give --rate SESSIONS_PER_S")
    load = replace(load, agents=agents, rate=rate, burstiness=burstiness).at_load(fill.scale_load or 1.0)
    if load.kind == "recorded" and load.scale_load * len(load.sessions) < 1:
        raise UserError(
            f"--scale-load {load.scale_load:g}: not one of the {len(load.sessions):,} sessions of {load.name} is left"
        )
    if load.agents is not None:
        assumed.append(f"{load.agents} agents at work all the time")
    if load.rate is not None:
        law = "Poisson" if burstiness == 1 else f"Gamma gaps with a coefficient of variation of {burstiness:g}"
        assumed.append(f"{load.rate:g} sessions per second, {law}")
    if load.scale_load != 1:
        assumed.append(
            f"{load.scale_load:g} times the recorded sessions per second: the recorded starts gone through that much "
            "faster, over and over from a random place on, with sessions drawn anew"
        )
    return replace(load, assumed=tuple(assumed))


def _require_times(load: Workload, fill: Fill) -> None:
    """UserError where neither the source nor a flag says when sessions arrive or how long tools take."""
    lacking = []
    given = (load.agents, load.rate, fill.agents, fill.rate)
    if all(one is None for one in given) and any(s.start_s is None for s in load.sessions):
        lacking.append("arrivals (give --agents N or --rate SESSIONS_PER_S)")
    # After its last turn a session waits for nothing, so a wait that is missing only there is none.
    if _law(load, fill) is None and any(math.isnan(w) for s in load.sessions for w in s.waits[:-1]):
        missing = sum(math.isnan(w) for s in load.sessions for w in s.waits)
        lacking.append(f"{missing:,} tool waits (give --tool-wait lognormal:P50,P90, in seconds)")
    if lacking:
        raise UserError(f"workload {load.name} lacks {' and '.join(lacking)}")


def _law(load: Workload, fill: Fill) -> tuple[float, float] | None:
    """Median and 90th percentile of tool waits (s) where they are drawn. UserError on a law that cannot be."""
    if fill.tool_wait is None:
        return DEFAULT_WAIT if load.name == "samples" else None
    if fill.tool_wait == "recorded":
        return None
    match = _WAIT.fullmatch(fill.tool_wait)
    if not match or not 0 < float(match.group(1)) < float(match.group(2)) < float("inf"):
        raise UserError(f"--tool-wait {fill.tool_wait!r}: recorded, or lognormal:P50,P90 in seconds")
    return float(match.group(1)), float(match.group(2))


def _with_waits(load: Workload, fill: Fill, seed: int, assumed: list[str]) -> Workload:
    """Tool waits drawn from a law: all of them where a flag gives it, else those that were not recorded."""
    law = _law(load, fill)
    complete = not any(math.isnan(w) for s in load.sessions for w in s.waits)
    if law is None or (complete and fill.tool_wait is None):
        specs = tuple(replace(s, waits=tuple(0.0 if math.isnan(w) else w for w in s.waits)) for s in load.sessions)
        return replace(load, sessions=specs)
    rng = np.random.default_rng([seed, 3])
    specs = []
    for s in load.sessions:
        drawn = lognormal(rng, *law, Z90, len(s.waits)).tolist()
        waits = tuple(d if fill.tool_wait or math.isnan(w) else w for d, w in zip(drawn, s.waits, strict=True))
        specs.append(replace(s, waits=waits))
    assumed.append(f"tool waits log-normal, p50 {law[0]:g} s, p90 {law[1]:g} s")
    return replace(load, sessions=tuple(specs))


def _no_prefix(fill: Fill, name: str) -> None:
    if fill.prefix_tokens is not None:
        raise UserError(f"--prefix-tokens is for request logs; workload {name} says itself what its prefix is")


def stored_trajectories(name: str, store: Store) -> list[Trajectory]:
    """The trajectories that a `--traces` selection names."""
    from ..traces.select import select

    if re.fullmatch(r"[a-z-]+", name) and name not in ("last", "all") and not Path(name).exists():
        raise unknown("workload", name, [*BUNDLED, "requests", "last", "all"])
    return select(store, name, None)


def stored_requests(name: str, store: Store) -> list[Request]:
    """The rows that `requests`, `requests:SELECTION` or the path of a request log names; empty for anything else."""
    from ..traces.files import read_file
    from ..traces.ingest import expand
    from ..traces.select import select_requests

    if name == "requests" or name.startswith("requests:"):
        return select_requests(store, name.partition(":")[2] or "last")
    if any(c in name for c in "*?[/\\") or Path(name).exists():
        kind, _, _ = read_file(next(iter(expand([name]))))
        return select_requests(store, name) if kind.kind == "requests" else []
    return []
