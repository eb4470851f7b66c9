"""The outcome of a night in the text format of Prometheus, for a node exporter's text file collector.

Only outcomes, as a batch job has no more to say; alert on `kvmill_nightly_last_success_timestamp_seconds` being old,
which also finds nights that never ran.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from ..replay.gate_nouns import CATEGORIES


def prometheus(found: Mapping[str, Any]) -> str:
    """The file's text. The last success is that of the store: a red night repeats the time of the last green one."""
    night = _label(found["name"])
    ended = found["started_s"] + found["duration_s"]
    lines: list[str] = []

    def gauge(name: str, help: str, values: Mapping[str, float]) -> None:
        lines.extend([f"# HELP kvmill_nightly_{name} {help}", f"# TYPE kvmill_nightly_{name} gauge"])
        lines.extend(f"kvmill_nightly_{name}{{{labels}}} {value:.17g}" for labels, value in values.items())

    gauge("last_run_timestamp_seconds", "When the newest night ended.", {night: ended})
    if found["last_success"] is not None:
        succeeded = datetime.fromisoformat(found["last_success"]).timestamp()
        gauge("last_success_timestamp_seconds", "When the newest green night ended.", {night: succeeded})
    gauge("duration_seconds", "How long the newest night took.", {night: found["duration_s"]})
    gauge("exit_code", "0 green, 4 undecided, 5 regression, 6 incomplete.", {night: found["exit_code"]})
    counts = {f'{night},category="{name}"': float(found["counts"].get(name, 0)) for name in CATEGORIES}
    gauge("verdicts", "Rows of the newest night by category.", counts)
    return "\n".join(lines) + "\n"


def _label(name: str) -> str:
    spelled = name.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    return f'name="{spelled}"'
