"""What is planned for: workload, model, machine, promises and policy, as the page asks and as `kvmill plan` is told.

The other flags are those of the command itself (`flags`), so that the page has every setting that the command has.
"""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..simulator.flags import load_flags, machine_flags
from ..simulator.given import Given, given, tp_of
from ..simulator.slo import parse_slo
from ..traces.store import Store
from .verbs import Option, options_of, words

LOAD = tuple(inspect.signature(load_flags).parameters)
MACHINE = tuple(inspect.signature(machine_flags).parameters)
FIRST_LOOK, ENOUGH = 3, 10
"""Replications of a first look, which is flagged as one, and of an answer."""
LOADS = (0.5, 0.75, 1.0, 1.25, 1.5, 2.0)
"""Times the workload's own load, where the answer's sensitivity to it is simulated."""
KEPT = ("dtype", "kv_dtype", "utilisation", "max_model_len", "token_budget", "max_sequences", "retention",
        "preemption", "compaction", "coarse_tokens", "router", "agents", "rate")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Setting:
    """One question. `flags` are further options of `kvmill plan` and their values, those at their defaults left out."""

    workload: str = "long-agents"
    model: str = "qwen3.5-27b"
    gpu: str = "h200"
    slo: tuple[str, ...] = ("ttft_p95=2", "tpot_p95=0.05")
    flags: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def of(cls, workload: str, model: str, gpu: str, slo: Sequence[str], flags: Mapping[str, Any]) -> Setting:
        """From what was asked for. UserError for promises that are none."""
        promises = tuple(f"{promise.key}={promise.limit_s:g}" for promise in parse_slo(list(slo)))
        defaults = {option.name: option.default for option in shared()}
        told = {key: value for key, value in flags.items() if value is not None and value != defaults.get(key)}
        return cls(workload, model, gpu, promises, tuple(sorted(told.items())))

    @classmethod
    def of_config(cls, config: Mapping[str, Any], window: int | None = None) -> Setting:
        """The question of a stored plan, as far as its record tells: `window` is the model's own."""
        flags = {key: config.get(key) for key in KEPT}
        flags["max_model_len"] = None if flags["max_model_len"] == window else flags["max_model_len"]
        flags["tp"] = str(config["tp"]) if config.get("tp") else None
        flags["price"] = config.get("price_per_hour") if config.get("price_source") == "--price" else None
        if config.get("workload") in ("long-agents", "samples") and flags["agents"] == 400:
            flags["agents"] = None
        slo = [f"{key}={limit:g}" for key, limit in (config.get("slo") or {}).items()]
        first = cls()
        workload, model, gpu = (str(config.get(key) or getattr(first, key)) for key in ("workload", "model", "gpu"))
        return cls.of(workload, model, gpu, slo or first.slo, flags)

    def get(self, flag: str) -> Any:
        """The value of a further option, None where it is at its default."""
        return dict(self.flags).get(flag)

    def options(self) -> dict[str, Any]:
        """As options of `kvmill plan` and `simulate`, without policies."""
        named = {"workload": self.workload, "model": self.model, "gpu": self.gpu, "slo": list(self.slo)}
        return named | dict(self.flags)

    def given(self, store: Store) -> Given:
        """The same as nouns of the simulator. Paths begin at the store, as those of jobs do. UserError as a plan."""
        flags = dict(self.flags)
        tp = tp_of(str(flags.pop("tp", "auto")))
        if flags.get("calibration"):
            flags["calibration"] = placed(str(flags["calibration"]), store)
        workload, model, gpu = (placed(name, store) for name in (self.workload, self.model, self.gpu))
        return given(workload, model, gpu, store=store, tp=tp, **flags)


@dataclass(frozen=True, slots=True)
class Ask:
    """The question with its policy, and what the policy is made of. `replay`: where quality is from, None: newest."""

    setting: Setting
    policy: str
    method: str
    keep: float | None
    replay: str | None = None

    @property
    def policies(self) -> list[str]:
        """`full` and the policy, once if they are the same."""
        return list(dict.fromkeys(["full", self.policy]))

    def plan(self, replications: int) -> dict[str, Any]:
        """Options of the job `plan` that answers it."""
        return self.setting.options() | {
            "policy": self.policies,
            "replications": replications,
            "from": self.replay,
        }

    def loads(self) -> dict[str, Any]:
        """Options of the job `plan` that answers it at every one of LOADS: a first look at each."""
        own = float(self.setting.get("scale_load") or 1.0)
        values = ",".join(f"{own * load:g}" for load in LOADS)
        return self.plan(FIRST_LOOK) | {"scale_load": None, "sweep": [f"scale_load={values}"]}

    def series(self, policy: str, gpus: int) -> dict[str, Any]:
        """Options of the job `simulate` that watches one fleet over time. A price means nothing to it."""
        told = {key: value for key, value in self.setting.options().items() if key != "price"}
        return told | {"policy": policy, "gpus": gpus, "series": True, "from": self.replay}


def shared() -> tuple[Option, ...]:
    """The further options that the page offers: the load, how a replica is run, the price."""
    return tuple(option for option in options_of("plan") if option.name in (*LOAD, *MACHINE, "price"))


def placed(name: str, store: Store) -> str:
    """A path below the store as one that can be opened; anything else as it is."""
    path = Path(name).expanduser()
    inside = store.desk.absolute() / path
    return str(inside) if not path.is_absolute() and path.suffix and inside.exists() else name


def places(setting: Setting) -> list[str]:
    """The words of a question that may name files, for the check of what may be read."""
    return [setting.workload, setting.model, setting.gpu, *(str(v) for _, v in setting.flags if isinstance(v, str))]


def command(verb: str, options: Mapping[str, Any]) -> str:
    """The command line that means these options, to copy."""
    return shlex.join(["kvmill", *verb.split(), *words(verb, options)])


def promises(ttft_s: float | None, tpot_ms: float | None, more: str) -> list[str]:
    """Promises from what is typed. UserError when there is none."""
    texts = [f"ttft_p95={ttft_s:g}"] if ttft_s else []
    texts += [f"tpot_p95={tpot_ms / 1000:g}"] if tpot_ms else []
    texts += more.replace(",", " ").split()
    if not texts:
        raise UserError("give one promise at least, for instance a p95 of the time to first token")
    return texts
