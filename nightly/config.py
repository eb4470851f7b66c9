"""What a night does, in TOML: `docs/nightly.md` has every key with its default. Unknown keys are refused."""

from __future__ import annotations

import inspect
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import UserError, unknown
from ..replay.executors.choice import Executing
from ..replay.gate_nouns import METRICS, Rules
from ..replay.policies.registry import parse_policies, parse_policy
from ..replay.start import MEASURES, MODES

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
PLAN = ("workload", "model", "gpu", "slo")
_NOT_PLANNED = {"run", "store", "save", "tick", "flags", "method", "sweep", "max_load", "gpus"}
MARGINS = (*METRICS, "kv_tokens_peak", "kept")
_BY_NAME = {str: "a text", int: "a whole number", list: "a list of texts", bool: "true or false"}


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
    try:
        raw = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"configuration {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"configuration {where}: not TOML: {error}") from error
    _known(raw, (*TEXTS, *TABLES), where)
    texts = {key: _of(raw, key, str, where) for key in TEXTS}
    tables = {name: _table(raw, name, where) for name in TABLES}
    traces = tables["traces"]
    _known(traces, TRACES, f"{where}: traces")
    chosen = {key: _of(traces, key, kind, f"{where}: traces") for key, kind in TRACES.items()}
    if not chosen["pinned"] and not chosen["newest"]:
        raise UserError(f'{where}: no traces: give pinned = ["samples"] or newest = 20 under [traces]')
    for key in ("per_family", "newest"):
        if chosen[key] is not None and chosen[key] < (1 if key == "per_family" else 0):
            raise UserError(f"{where}: traces: {key} = {chosen[key]}: give 1 or more")
    checkout = texts["baseline_checkout"]
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
        replay=_replay(tables["replay"], f"{where}: replay"),
        rules=_rules(tables["gate"], f"{where}: gate"),
        plan=_plan(tables["plan"], f"{where}: plan"),
    )


def _replay(raw: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    known = REPLAY | EXECUTING
    _known(raw, known, where)
    settings = {key: _of(raw, key, known[key], where) for key in raw}
    for key, known in (("mode", MODES), ("measure", MEASURES)):
        if settings.get(key) not in (None, *known):
            raise unknown(key, settings[key], known, where)
    Executing(**{key: settings[key] for key in EXECUTING if key in settings})
    parse_policies(settings.get("policies", ()))  # before a night is spent on it
    return settings


def _rules(raw: Mapping[str, Any], where: str) -> Rules:
    _known(raw, (*MARGINS, "peak_share"), where)
    default = Rules()
    margins = {name: _margin(raw, name, where, default.margins[name]) for name in METRICS}
    peak = _margin(raw, "kv_tokens_peak", where, default.peak)
    if peak is None:
        raise UserError(f"{where}: kv_tokens_peak = false: the peak KV is always held to its promise; give a share")
    shares = raw.get("peak_share", {})
    if not isinstance(shares, Mapping):
        raise UserError(f"{where}: peak_share: give a table of policies and shares")
    promised = {str(parse_policy(name)): _margin(shares, name, f"{where}: peak_share", None) for name in shares}
    return Rules(
        margins,
        peak,
        _margin(raw, "kept", where, default.kept),
        {name: share for name, share in promised.items() if share is not None},
    )


def _plan(raw: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    if not raw:
        return {}
    if missing := [key for key in PLAN if key not in raw]:
        raise UserError(f"{where}: {', '.join(missing)} missing; [plan] needs {', '.join(PLAN)}")
    from ..simulator.answers import plan_named
    from ..simulator.given import FILL, REPLICA, given
    from ..simulator.hardware import find_gpu
    from ..simulator.models import find_geometry
    from ..simulator.slo import parse_slo

    named = {name for function in (plan_named, given) for name in inspect.signature(function).parameters}
    _known(raw, {*named, *FILL, *REPLICA} - _NOT_PLANNED, where)
    Executing(raw.get("executor", "local"))
    find_geometry(raw["model"]), find_gpu(raw["gpu"]), parse_slo(raw["slo"])  # before a night is spent on it
    return raw


def _margin(raw: Mapping[str, Any], key: str, where: str, default: float | None) -> float | None:
    value = raw.get(key, default)
    if value is False:
        return None
    if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e9):
        raise UserError(f"{where}: {key} = {value!r}: a number of 0 or more, or false")
    return None if value is None else float(value)


def _table(raw: Mapping[str, Any], key: str, where: str) -> Mapping[str, Any]:
    found = raw.get(key, {})
    if not isinstance(found, Mapping):
        raise UserError(f"{where}: {key}: give a table, [{key}]")
    return found


def _of(raw: Mapping[str, Any], key: str, kind: type | tuple[type, ...], where: str) -> Any:
    value = raw.get(key)
    if value is None:
        return None
    wrong = not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool)
    if wrong or (isinstance(value, list) and not all(isinstance(item, str) for item in value)):
        wanted = "a number" if isinstance(kind, tuple) else _BY_NAME[kind]
        raise UserError(f"{where}: {key} = {value!r}: give {wanted}")
    return value


def _known(raw: Mapping[str, Any], known: Any, where: str) -> None:
    for key in raw:
        if key not in known:
            raise unknown("key", key, known, where)
