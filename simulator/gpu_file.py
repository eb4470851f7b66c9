"""A user's GPU, or a calibration of a known one, as TOML: fields by name with their units, the rest from `base`.

    name = "my-h100"
    base = "h100"
    price_per_hour_usd = 2.49
    host_step_ms = 0.4
    [matmul_efficiency]
    fp8 = 0.55

`calibrate` writes the same form, with a table `calibration` that says where the figures are from.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from ..console import note
from ..errors import UserError, unknown
from ..toml import read_toml
from .gpu import Gpu
from .gpus import GPUS, NO_PRICE

NUMBERS = {  # key → (field, units of the field in one of the key's, lowest, highest)
    "usable_gib": ("usable_gib", 1.0, 1.0, 4096.0),
    "bandwidth_gb_s": ("bandwidth", 1e9, 50.0, 100_000.0),
    "decode_attention_efficiency": ("decode_attention", 1.0, 0.01, 1.0),
    "prefill_attention_efficiency": ("prefill_attention", 1.0, 0.01, 1.0),
    "attention_floor_us": ("attention_floor_s", 1e-6, 0.0, 10_000.0),
    "attention_io_efficiency": ("attention_io", 1.0, 0.01, 10.0),
    "expert_matmul_efficiency": ("expert_matmul", 1.0, 0.01, 1.0),
    "expert_floor_us": ("expert_floor_s", 1e-6, 0.0, 10_000.0),
    "layer_us": ("layer_s", 1e-6, 0.0, 10_000.0),
    "host_link_gb_s": ("link_bandwidth", 1e9, 0.5, 2000.0),
    "host_step_ms": ("host_step_s", 1e-3, 0.0, 1000.0),
    "host_sequence_us": ("host_sequence_s", 1e-6, 0.0, 100_000.0),
    "error": ("step_error", 1.0, 0.0, 0.99),
    "price_per_hour_usd": ("price_per_hour", 1.0, 1e-6, 1e6),
}
BY_DTYPE = {
    "dense_tflops": ("flops", 1e12, 1.0, 1e6),
    "matmul_efficiency": ("matmul", 1.0, 0.01, 1.0),
    "streaming_efficiency": ("streaming", 1.0, 0.01, 1.0),
    "matmul_floor_us": ("matmul_floor_s", 1e-6, 0.0, 10_000.0),
    "overlap": ("overlap", 1.0, 1.0, 100.0),
}
TEXTS = (
    "price_source",
    "usable_source",
    "link_source",
    "efficiency_source",
    "all_reduce_source",
    "host_source",
    "error_source",
)
SOURCED = {  # where a figure of the file is from, unless it says so itself
    "price_source": {"price_per_hour"},
    "usable_source": {"usable_gib"},
    "link_source": {"link_bandwidth"},
    "host_source": {"host_step_s", "host_sequence_s"},
    "error_source": {"step_error"},
    "all_reduce_source": {"all_reduce_s"},
    "efficiency_source": {"matmul", "streaming", "decode_attention", "prefill_attention", "attention_io"},
}
POINTS = "all_reduce_us"  # tensor-parallel size → pairs of message bytes and microseconds
KEYS = ("name", "base", *NUMBERS, *BY_DTYPE, *TEXTS, POINTS, "calibration")
DTYPES = ("bf16", "fp8")
SPARSE = 1.5  # times the base's dense peak, from which a figure looks as if it counted zeros


@dataclass(frozen=True)
class Calibration:
    """What a file says of GPU `base`: fields of `Gpu` by name, and `facts` (errors, rows, sources) as written."""

    name: str
    base: str | None
    changes: Mapping[str, Any]
    facts: Mapping[str, Any]

    def applied(self, gpu: Gpu) -> Gpu:
        """`gpu` with these figures. UserError when they were found on another part."""
        if gpu.name not in (self.name, self.base):
            raise UserError(f"calibration {self.name}: it is of {self.base or self.name}, not of {gpu.name}")
        kept = {key: value for key, value in self.changes.items() if not key.startswith(("price", "usable"))}
        return _merged(gpu, kept)


def read_calibration(path: str | Path) -> Calibration:
    """A calibration, or any GPU file, to be laid over a GPU. UserError saying the key that is wrong, and the known."""
    path = Path(path).expanduser()
    raw = read_toml(path, "GPU file")
    for key in raw:
        if key not in KEYS:
            raise unknown("key", key, KEYS, f"GPU file {path.name}")
    name, base = (raw.get(key) for key in ("name", "base"))
    if not isinstance(name, str) or not name.strip():
        raise UserError(f'GPU file {path.name}: name = "…" is missing')
    if base is not None and (not isinstance(base, str) or base not in GPUS):
        raise unknown("base", str(base), GPUS, f"GPU file {path.name}")
    facts = raw.get("calibration", {})
    if not isinstance(facts, dict):
        raise UserError(f"GPU file {path.name}: calibration must be a table")
    return Calibration(name.strip().lower(), base, _changes(raw, path.name), facts)


def read_gpu(path: str | Path) -> Gpu:
    """The GPU that a file defines. UserError on an unknown key, a figure that cannot be, or one that is missing."""
    path = Path(path).expanduser()
    found = read_calibration(path)
    if found.name in GPUS:
        raise UserError(f"GPU file {path.name}: name {found.name!r} is that of a built-in GPU; choose another")
    if found.base is not None:
        unknown_error = {"error_source": f"assumed: as of {found.base}"}  # it was measured on that part as it is
        gpu = replace(_merged(GPUS[found.base], unknown_error | dict(found.changes)), name=found.name)
    else:
        gpu = _whole(found, path.name)
    _check(gpu, found.base, path.name)
    return gpu


def _whole(found: Calibration, where: str) -> Gpu:
    """A GPU of which the file says everything that has no default; without a price it has none."""
    known = {"name": found.name, "price_per_hour": None, "all_reduce_s": {}} | dict(found.changes)
    no_default = (f.name for f in fields(Gpu) if f.default is MISSING and f.default_factory is MISSING)
    wanted = [name for name in no_default if name not in known]
    if wanted:
        keys = {field: key for key, (field, *_) in (NUMBERS | BY_DTYPE).items()}
        missing = ", ".join(keys[field] for field in wanted)
        raise UserError(f"GPU file {where}: {missing} missing; give them, or base = one of {', '.join(GPUS)}")
    unsaid: dict[str, Any] = {"price_source": NO_PRICE, "all_reduce_source": f"{where}: none given"}
    return Gpu(**(unsaid | known))


def _merged(gpu: Gpu, changes: Mapping[str, Any]) -> Gpu:
    """Tables are completed by key, not replaced: a file may state one dtype, or one tensor-parallel size."""
    merged: dict[str, Any] = {
        key: dict(getattr(gpu, key)) | value if isinstance(value, dict) else value for key, value in changes.items()
    }
    return replace(gpu, **merged)


def _changes(raw: Mapping[str, Any], where: str) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    for key, (field, unit, low, high) in NUMBERS.items():
        if key in raw:
            changes[field] = _number(raw[key], f"{where}: {key}", low, high) * unit
    for key, (field, unit, low, high) in BY_DTYPE.items():
        if key in raw:
            table = _table(raw[key], f"{where}: {key}", DTYPES)
            changes[field] = {d: _number(v, f"{where}: {key}.{d}", low, high) * unit for d, v in table.items()}
    for key in TEXTS:
        if key in raw:
            changes[key] = str(raw[key])
    if POINTS in raw:
        table = _table(raw[POINTS], f"{where}: {POINTS}", ("2", "4", "8"))
        changes["all_reduce_s"] = {int(tp): _points(v, f"{where}: {POINTS}.{tp}") for tp, v in table.items()}
    for source, parts in SOURCED.items():
        if parts & changes.keys():
            changes.setdefault(source, f"{where} (given)")
    return changes


def _number(value: Any, what: str, low: float, high: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise UserError(f"GPU file {what} = {value!r}: must be a number")
    if not low <= value <= high:
        raise UserError(f"GPU file {what} = {value:g}: must be between {low:g} and {high:g}; mind the unit")
    return float(value)


def _table(value: Any, what: str, known: tuple[str, ...]) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise UserError(f"GPU file {what}: must be a table with keys of {', '.join(known)}")
    for key in value:
        if key not in known:
            raise unknown("key", key, known, f"GPU file {what}")
    return value


def _points(value: Any, what: str) -> tuple[tuple[float, float], ...]:
    if not isinstance(value, list) or not value or not all(isinstance(pair, list) and len(pair) == 2 for pair in value):
        raise UserError(f"GPU file {what}: must be a list of [message bytes, microseconds]")
    points = tuple((_number(s, what, 1.0, 1e12), _number(t, what, 1e-3, 1e9) * 1e-6) for s, t in value)
    if any(b[0] <= a[0] for a, b in pairwise(points)):
        raise UserError(f"GPU file {what}: message bytes must ascend")
    return points


def _check(gpu: Gpu, base: str | None, where: str) -> None:
    """Figures that do not fit each other are refused; a peak that looks sparse is only doubted."""
    if not gpu.flops.keys() == gpu.matmul.keys() == gpu.streaming.keys() or "bf16" not in gpu.flops:
        raise UserError(f"GPU file {where}: {', '.join(BY_DTYPE)} must have the same dtypes, bf16 among them")
    if not gpu.flops.keys() <= gpu.matmul_floor_s.keys() & gpu.overlap.keys():
        raise UserError(f"GPU file {where}: matmul_floor_us and overlap must have every dtype of dense_tflops")
    if "fp8" in gpu.flops and gpu.flops["fp8"] * gpu.matmul["fp8"] >= 2 * gpu.flops["bf16"] * gpu.matmul["bf16"]:
        raise UserError(f"GPU file {where}: fp8 products at twice the speed of bf16 or more; measured parts reach 1.6")
    if base is not None and gpu.flops["bf16"] > SPARSE * GPUS[base].flops["bf16"]:
        dense = GPUS[base].flops["bf16"] / 1e12
        note(
            f"warning: {where}: {gpu.flops['bf16'] / 1e12:g} bf16 TFLOPS against {dense:g} of {base}: dense, or sparse?"
        )
