"""What a call of `replay` asks for: every setting as given, and filled up from a resumed run or by default."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..errors import UserError, unknown
from .policies.registry import parse_policy
from .weights import DEFAULT_MODEL

MODES = ("teacher", "stepwise", "closed")
MEASURES = ("quality", "latency", "both")
_GENERATING, _ACTING = ("temperature", "max_action_tokens", "actions"), ("seed_turns", "max_turns")  # flags of a mode
_DEFAULTS: Mapping[str, Any] = {
    "traces": "last",
    "model": DEFAULT_MODEL,
    "mode": "teacher",
    "measure": "quality",
    "limit": None,
    "seed": 0,
    "dtype": "auto",
    "device": "auto",
    "threads": None,
    "equal_size": None,
    "temperature": None,
    "max_action_tokens": None,
    "actions": None,
    "long": "skip",
    "include_compacted": False,
    "sweep": (),
    "explain": False,
    "seed_turns": None,
    "max_turns": None,
    "executor": "local",
}
_CALLED = {"actions": "actions_given", "sweep": "sweeps"}  # in a run's config, where the bare name means more


@dataclass(frozen=True, slots=True)
class Wanted:
    """The settings of a replay, as the flags of `kvmill replay` describe them. None: not given.

    UserError on modes and measures nobody knows, on a policy that is none, and on `equal_by` alone.
    """

    traces: str | None = None
    model: str | None = None
    policies: Sequence[str] | None = None
    mode: str | None = None
    measure: str | None = None
    limit: int | None = None
    seed: int | None = None
    dtype: str | None = None
    device: str | None = None
    threads: int | None = None
    resume: str | None = None
    equal_size: str | None = None
    equal_by: str | None = None
    probes: str | None = None
    temperature: float | None = None
    max_action_tokens: int | None = None
    actions: str | None = None
    long: str | None = None
    include_compacted: bool | None = None
    sweep: Sequence[str] | None = None
    explain: bool | None = None
    seed_turns: int | None = None
    max_turns: int | None = None
    executor: str | None = None
    workers: int | None = None
    gpus_per_worker: int | None = None
    ray_address: str | None = None
    until_decided: bool | None = None
    max_loss: float | None = None
    confidence: float | None = None
    batch: int | None = None
    max_trajectories: int | None = None

    def __post_init__(self) -> None:
        if self.mode not in (None, *MODES):
            raise unknown("mode", str(self.mode), MODES, "--mode")
        if self.measure not in (None, *MEASURES):
            raise unknown("measure", str(self.measure), MEASURES, "--measure")
        if self.equal_by is not None and self.equal_size is None:
            raise UserError("--equal-by says how --equal-size compares: give both")

    def filled(self, before: Mapping[str, Any]) -> Wanted:
        """With what is not given as the resumed run had it (`before`, its config; empty for a new run), else default.

        `policies` and what belongs to `until_decided` or to this call's machines stay as given.
        """
        found = {
            name: before.get(_CALLED.get(name, name), default) if getattr(self, name) is None else getattr(self, name)
            for name, default in _DEFAULTS.items()
        }
        found["equal_size"] = found["equal_size"] and str(parse_policy(found["equal_size"]))
        by_default = {"equal_by": "peak" if found["equal_size"] else None}
        by_default["probes"] = "recorded" if self.resume else "auto"  # runs of before there were made ones say nothing
        for name, default in by_default.items():
            given = getattr(self, name)
            found[name] = before.get(name, default) if given is None else given
        return replace(self, **found)

    def require_together(self, filled: Wanted) -> None:
        """UserError on given settings that do not go with the mode, the measure or each other once all is filled."""
        names = (*_GENERATING, *_ACTING, "long")
        require_of_mode(str(filled.mode), str(filled.measure), {name: getattr(self, name) for name in names})
        if filled.sweep and filled.equal_size:
            raise UserError(
                "--equal-size solves the keep ratios anew: the settings of a --sweep would not be those named"
            )
        if self.explain and filled.measure == "latency":
            raise UserError("--explain is about the tokens of quality cells: use --measure quality or both")
        if self.explain and filled.mode == "closed":
            raise UserError("--explain is about recorded tokens: use --mode teacher or stepwise")
        if filled.mode == "closed" and filled.equal_size:
            raise UserError("--equal-size solves keep ratios on recorded tokens; closed-loop runs go other ways")


def require_of_mode(mode: str, measure: str, given: Mapping[str, Any]) -> None:
    """UserError on what is given (not None) for another mode, and on a mode that does not measure this."""
    flags = {name: f"--{name.replace('_', '-')}" for name, value in given.items() if value is not None}
    if mode == "teacher" and (extra := [flag for name, flag in flags.items() if name in _GENERATING]):
        raise UserError(f"{', '.join(extra)}: only for --mode stepwise or closed, where actions are generated")
    if mode != "closed" and (extra := [flag for name, flag in flags.items() if name in _ACTING]):
        raise UserError(f"{', '.join(extra)}: only for --mode closed, where the model acts by itself")
    if mode == "closed" and "long" in flags:
        raise UserError("--long is about recorded turns: a closed-loop run ends where the model's window does")
    if mode == "closed" and measure != "quality":
        raise UserError("--mode closed measures what the model does: latency comes from --mode teacher")
