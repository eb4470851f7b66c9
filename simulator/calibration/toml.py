"""A GPU as the TOML that `gpu_file` reads: only what differs from the part it is based on."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from ..gpu import Gpu
from ..gpu_file import BY_DTYPE, NUMBERS, POINTS, SOURCED, TEXTS
from ..gpus import GPUS


def gpu_toml(gpu: Gpu, base: Gpu, facts: Mapping[str, Any]) -> str:
    """Text of the file; `facts` become its table `calibration`.

    Over a GPU of the user's own the file has that name and no base: it can be laid over it, not stand alone.
    """
    built_in = base.name in GPUS
    lines = [f"name = {_text(gpu.name)}", f"base = {_text(base.name)}"] if built_in else [f"name = {_text(base.name)}"]
    for key, (field, unit, *_) in NUMBERS.items():
        value = getattr(gpu, field)
        if value is not None and value != getattr(base, field):
            lines.append(f"{key} = {_number(value / unit)}")
    lines += [f"{key} = {_text(getattr(gpu, key))}" for key in TEXTS if _said(key, gpu, base)]
    for key, (field, unit, *_) in BY_DTYPE.items():
        changed = {d: v / unit for d, v in getattr(gpu, field).items() if getattr(base, field).get(d) != v}
        lines += _table(key, (f"{dtype} = {_number(value)}" for dtype, value in changed.items()))
    moved = {tp: points for tp, points in gpu.all_reduce_s.items() if base.all_reduce_s.get(tp) != points}
    pairs = {
        tp: ", ".join(f"[{_number(size)}, {_number(s * 1e6)}]" for size, s in points) for tp, points in moved.items()
    }
    lines += _table(POINTS, (f"{tp} = [{text}]" for tp, text in pairs.items()))
    lines += _table("calibration", (f"{key} = {_value(value)}" for key, value in facts.items()))
    return "\n".join(lines) + "\n"


def _said(source: str, gpu: Gpu, base: Gpu) -> bool:
    """Whether a source must be written: it is another one, or what it speaks of is (a reader would replace it)."""
    return source == "error_source" or any(
        getattr(gpu, name) != getattr(base, name) for name in (source, *SOURCED.get(source, ()))
    )


def _table(name: str, rows: Iterable[str]) -> list[str]:
    found = list(rows)
    return ["", f"[{name}]", *found] if found else []


def _number(value: float) -> str:
    """Nine digits: more than any table measures, and a float where TOML wants one."""
    return repr(float(f"{value:.9g}"))


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)


def _value(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    if isinstance(value, float):
        return _number(value)
    return str(value) if isinstance(value, int) else _text(str(value))
