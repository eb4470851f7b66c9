"""What a replay will take, before it runs: seconds and bytes, always estimated, with what the figures rest on.

Seconds are per token and policy (a policy's branch is fed every token), taken from earlier runs of the same model and
mode in the store, else from constants of a two-core machine scaled by the parameters. Bytes are weights, a runtime, and
the rows that the policies' own `footprint` says are held at once, all policies in lockstep on the longest trajectories.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from ..console import size
from ..errors import UserError
from ..replay.policies.base import Policy, SegmentSize
from ..simulator.geometry import Geometry
from ..simulator.models import find_geometry

# Assumed where no run was stored: SmolLM2-135M on two quiet cores.
FEED_S, DECODE_S, LOAD_S = 2e-3, 0.04, 10.0
OF_PARAMETERS = 134.5e6
CHARACTERS_PER_TOKEN = 4.0
RUNTIME_BYTES = 700_000_000
MARKUP_TOKENS = 8  # per turn, and for the prefix
MOST_ACTION_TOKENS = 128  # of a generated action, the default of `kvmill replay`
REPEATS = 3  # of a timed call, likewise
LEAST_S = 2 * LOAD_S  # a shorter run is mostly loading: it tells no speed
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True)
class Length:
    """How long one trajectory is, in characters; `reply_characters` are the model's own."""

    id: str
    family: str
    turns: int
    characters: int
    reply_characters: int

    def tokens(self, counted: float | None) -> float:
        """Its tokens: by characters per token as earlier runs `counted` them, markup and all, else as is assumed."""
        if counted:
            return self.characters / counted
        return self.characters / CHARACTERS_PER_TOKEN + MARKUP_TOKENS * (self.turns + 1)


@dataclass(frozen=True, slots=True)
class Past:
    """What earlier complete runs of a model tell. `runs`: (mode, seconds without timed cells, tokens × policies)."""

    runs: Sequence[tuple[str, float, float]] = ()
    decode_s: float | None = None
    characters_per_token: float | None = None
    dtype: str | None = None
    device: str | None = None

    def seconds_per_token(self, mode: str) -> float | None:
        """Median over the runs of a mode, per token and policy; None where none is long enough to tell."""
        rates = [max(0.0, seconds - LOAD_S) / tokens for of, seconds, tokens in self.runs if of == mode]
        return median(rates) if rates else None


@dataclass(frozen=True, slots=True)
class Estimate:
    """`seconds` and `bytes` are None where nothing tells them; `rests_on` says in words what they come from."""

    trajectories: int
    tokens: int
    policies: int
    seconds: float | None
    bytes: int | None
    rests_on: tuple[str, ...]


def estimate(
    lengths: Sequence[Length],
    policies: Sequence[Policy],
    longest: Sequence[Sequence[SegmentSize]],
    model: str,
    mode: str,
    measure: str,
    past: Past,
) -> Estimate:
    """What a replay of `lengths` under `policies` (with `full`) takes. `longest`: segments of the longest ones."""
    shape = _shape(model)
    said: list[str] = []
    per_token = past.characters_per_token or CHARACTERS_PER_TOKEN
    known = "as in earlier runs" if past.characters_per_token else "assumed"
    said.append(f"{per_token:.1f} characters per token ({known})")
    tokens = {length.id: length.tokens(past.characters_per_token) for length in lengths}
    feed_s, decode_s = _speeds(past, shape, mode, said)
    seconds = None
    if feed_s is not None and decode_s is not None:
        seconds = LOAD_S
        if measure != "latency":
            seconds += len(policies) * feed_s * sum(tokens.values())
            if mode != "teacher" and past.seconds_per_token(mode) is None:
                spoken = sum(min(MOST_ACTION_TOKENS * n.turns, n.reply_characters / per_token) for n in lengths)
                seconds += len(policies) * decode_s * spoken
        if measure != "quality":
            timed = lengths if measure == "latency" else list({n.family: n for n in reversed(lengths)}.values())
            each = (tokens[n.id] * feed_s + n.reply_characters / per_token * decode_s for n in timed)
            seconds += REPEATS * len(policies) * sum(each)
    return Estimate(
        trajectories=len(lengths),
        tokens=round(sum(tokens.values())),
        policies=len(policies),
        seconds=seconds,
        bytes=_bytes(shape, policies, longest, past.dtype, said),
        rests_on=tuple(said),
    )


def _speeds(past: Past, shape: Geometry | None, mode: str, said: list[str]) -> tuple[float | None, float | None]:
    """Seconds per token fed and per token generated, each per policy."""
    slower = shape.parameters / OF_PARAMETERS if shape else None
    feed_s = past.seconds_per_token(mode) or past.seconds_per_token("teacher")
    if feed_s is not None:
        of = mode if past.seconds_per_token(mode) is not None else "teacher"
        count = sum(m == of for m, _, _ in past.runs)
        runs = f"median of {count} {of} runs" if count > 1 else f"one {of} run"
        said.append(f"{1000 * feed_s:.2f} ms per token and policy: {runs} on {past.device}")
    elif slower is not None:
        feed_s = FEED_S * slower
        said.append(f"{1000 * feed_s:.2f} ms per token and policy (assumed: no such run yet; two cores)")
    else:
        said.append("no speed: there is no run of this model yet, and its size is not known here")
    if past.decode_s is not None:
        return feed_s, past.decode_s
    return feed_s, None if feed_s is None else feed_s * DECODE_S / FEED_S


def _bytes(
    shape: Geometry | None,
    policies: Sequence[Policy],
    longest: Sequence[Sequence[SegmentSize]],
    dtype: str | None,
    said: list[str],
) -> int | None:
    if shape is None:
        said.append("no memory figure: the model's shape is not known here")
        return None
    width = _BYTES.get(dtype or "float32", 4)
    row_bytes = shape.row_bytes("bf16") // 2 * width
    rows = max((sum(_peak(policy, segments) for policy in policies) for segments in longest), default=0)
    weights = int(shape.parameters * width)
    said.append(
        f"{size(weights)} of {dtype or 'float32'} weights, {size(rows * row_bytes)} of KV at the peak "
        f"of all policies, {size(RUNTIME_BYTES)} for the runtime (assumed)"
    )
    return weights + rows * row_bytes + RUNTIME_BYTES


def _peak(policy: Policy, segments: Sequence[SegmentSize]) -> int:
    return max((turn.kv_rows_peak + turn.transient_rows for turn in policy.footprint(segments)), default=0)


def _shape(model: str) -> Geometry | None:
    try:
        return find_geometry(model)
    except UserError:
        return None  # any model can be replayed; what is not known is said


def past_of(runs: Sequence[Mapping[str, Any]], decode_s: float | None, ratio: float | None) -> Past:
    """From rows of `queries_replay.finished`, newest first. `ratio`: characters per token that were counted."""
    spent = [(r["mode"], r["seconds"] - r["timed_s"], r["fed"]) for r in runs]
    told = [(mode, seconds, fed) for mode, seconds, fed in spent if seconds >= LEAST_S and fed]
    newest = runs[0] if runs else {}
    return Past(told, decode_s, ratio, newest.get("dtype"), newest.get("device"))
