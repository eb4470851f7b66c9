"""What a night does, in TOML: `docs/nightly.md` has every key with its default. Unknown keys are refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import UserError, unknown
from ..replay.executors.choice import Executing
from ..replay.gate_nouns import METRICS, Rules
from ..replay.policies.registry import DEMO_POLICIES, parse_policies, parse_policy
from ..replay.wanted import MEASURES, MODES, require_of_mode
from ..toml import read_toml
from .fleet import checked
from .values import known, of, share, table

TEXTS = ("name", "folder", "prometheus", "baseline_python", "baseline_checkout")
TABLES = ("traces", "replay", "gate", "plan")
TRACES: dict[str, type] = {"pinned": list, "per_family": int, "newest": int, "newest_from": str}
REPLAY: dict[str, type | tuple[type, ...]] = {
    "model": str,
    "policies": list,
    "mode": str,
    "measure": str,
    "seed": int,
    "dtype": str,
    "device": str,
    "threads": int,
    "probes": str,
    "long": str,
    "include_compacted": bool,
    "temperature": (int, float),
    "max_action_tokens": int,
    "actions": str,
    "seed_turns": int,
    "max_turns": int,
    "latency_repeats": int,
}
EXECUTING: dict[str, type] = {"executor": str, "workers": int, "gpus_per_worker": int, "ray_address": str}
MARGINS = (*METRICS, "kv_tokens_peak", "kept")
_LEAST = {"per_family": 1, "newest": 0, "threads": 1, "latency_repeats": 1, "max_action_tokens": 1}


@dataclass(frozen=True, slots=True)
class NightConfig:
    """A night. `replay` are arguments of `run_replay`, `plan` those of `plan_named`, empty where none is asked for."""

    name: str
    folder: Path
    prometheus: Path | None = None
    baseline_python: str | None = None
    baseline_checkout: Path | None = None
    pinned: Sequence[str] = ()
    per_family: int | None = None
    newest: int = 0
    newest_from: str = "all"
    replay: Mapping[str, Any] = field(default_factory=dict)
    rules: Rules = field(default_factory=Rules)
    plan: Mapping[str, Any] = field(default_factory=dict)

    @property
    def other_code(self) -> bool:
        """Whether the baseline is other code, so that it can run without an accepted night."""
        return self.baseline_python is not None or self.baseline_checkout is not None


def load_config(path: str | Path) -> NightConfig:
    """The night of a TOML file. UserError names the file and the key, and lists what is known."""
    where = Path(path).name
    raw = read_toml(path, "configuration")
    known(raw, (*TEXTS, *TABLES), where)
    texts = {key: of(raw, key, str, where) for key in TEXTS}
    tables = {name: table(raw, name, where) for name in TABLES}
    traces = tables["traces"]
    known(traces, TRACES, f"{where}: traces")
    chosen = {key: of(traces, key, kind, f"{where}: traces", least=_LEAST.get(key)) for key, kind in TRACES.items()}
    if not chosen["pinned"] and not chosen["newest"]:
        raise UserError(f'{where}: no traces: give pinned = ["samples"] or newest = 20 under [traces]')
    checkout, replay = texts["baseline_checkout"], _replay(tables["replay"], f"{where}: replay")
    return NightConfig(
        name=texts["name"] or "nightly",
        folder=Path(texts["folder"] or "kvmill-nightly"),
        prometheus=Path(texts["prometheus"]) if texts["prometheus"] else None,
        baseline_python=texts["baseline_python"],
        baseline_checkout=Path(checkout) if checkout else None,
        pinned=tuple(chosen["pinned"] or ()),
        per_family=chosen["per_family"],
        newest=chosen["newest"] or 0,
        newest_from=chosen["newest_from"] or "all",
        replay=replay,
        rules=_rules(tables["gate"], f"{where}: gate", replay.get("policies") or DEMO_POLICIES),
        plan=checked(tables["plan"], f"{where}: plan"),
    )


def _replay(raw: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    kinds = REPLAY | EXECUTING
    known(raw, kinds, where)
    settings = {key: of(raw, key, kinds[key], where, least=_LEAST.get(key)) for key in raw}
    for key, names in (("mode", MODES), ("measure", MEASURES)):
        if settings.get(key) not in (None, *names):
            raise unknown(key, settings[key], names, where)
    require_of_mode(settings.get("mode", "teacher"), settings.get("measure", "quality"), settings)
    Executing(**{key: settings[key] for key in EXECUTING if key in settings})
    if settings.get("policies") == []:
        raise UserError(f"{where}: policies = []: give one at least, or leave it out for those of `kvmill demo`")
    parse_policies(settings.get("policies", ()))  # before a night is spent on it
    return settings


def _rules(raw: Mapping[str, Any], where: str, policies: Sequence[str]) -> Rules:
    known(raw, (*MARGINS, "peak_share"), where)
    default = Rules()
    margins = {name: share(raw, name, where, default.margins[name]) for name in METRICS}
    peak = share(raw, "kv_tokens_peak", where, default.peak)
    if peak is None:
        raise UserError(f"{where}: kv_tokens_peak = false: the peak KV is always held to its promise; give a share")
    shares = raw.get("peak_share", {})
    if not isinstance(shares, Mapping):
        raise UserError(f"{where}: peak_share: give a table of policies and shares")
    promised = {_replayed(name, policies, where): share(shares, name, f"{where}: peak_share", None) for name in shares}
    kept = {name: limit for name, limit in promised.items() if limit is not None}
    return Rules(margins, peak, share(raw, "kept", where, default.kept), kept)


def _replayed(name: str, policies: Sequence[str], where: str) -> str:
    """The policy of the night that `name` means, as the night spells it: a promise about another is never looked at."""
    wanted, replayed = parse_policy(name), parse_policies(list(policies))
    found = next((str(policy) for policy in replayed if policy == wanted), None)
    if found is None:
        raise unknown("policy", name, map(str, replayed), f"{where}: peak_share")
    return found
