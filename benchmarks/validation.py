"""What `kvmill validate` finds, kept: every check with its figures, and what it took.

`kvmill bench validation --data FOLDER --write` renews benchmarks/results/validation.json and docs/validation.md both
from one run. Without the folder of recorded runs nothing is written: the page would lose its reality.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from kvmill.console import note, plain
from kvmill.errors import UserError
from kvmill.simulator.validate import KINDS, validate
from kvmill.simulator.validation_text import markdown, text

ROOT = Path(__file__).resolve().parents[1]
FIGURES, PAGE = ROOT / "benchmarks" / "results" / "validation.json", ROOT / "docs" / "validation.md"
PACKAGES = ("numpy", "scipy", "simpy")


def measured(data: Path | None, share: float = 1.0) -> dict[str, Any]:
    """All kinds of checks, one after another, with the seconds of each (two processes for the interval checks)."""
    found: dict[str, Any] = {"passed": True, "checks": [], "skipped": [], "sensitivity": [], "elsewhere": []}
    seconds: dict[str, float] = {}
    for kind in KINDS:
        note(f"validation: {kind}")
        began = time.perf_counter()
        part = validate(only=kind, data=data, share=share, workers=2)
        seconds[kind] = round(time.perf_counter() - began, 1)
        found["passed"] = found["passed"] and part["passed"]
        for name in ("checks", "skipped", "sensitivity", "elsewhere"):
            found[name] += part[name]
    return found | {"share": share, "seconds": seconds}


def figures(found: dict[str, Any]) -> dict[str, Any]:
    """The figures with what they were measured on, numbers to six digits."""
    from kvmill.benchmarks.machine import processor

    return {
        "machine": {"processor": processor(), "cores": os.cpu_count(), "python": platform.python_version()},
        "versions": {name: version(name) for name in PACKAGES},
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        **short(found),
    }


def short(value: Any) -> Any:
    """The same with numbers to six digits."""
    if isinstance(value, dict):
        return {key: short(item) for key, item in value.items()}
    if isinstance(value, list):
        return [short(item) for item in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="kvmill bench validation", description=__doc__)
    parser.add_argument("--data", type=Path, help="folder of recorded runs [env KVMILL_SHARED_DATA]")
    parser.add_argument("--write", action="store_true", help="renew the figures and the page")
    parser.add_argument("--json", action="store_true", help="the figures as one JSON object")
    asked = parser.parse_args()
    found = measured(asked.data)
    if asked.write and found["skipped"]:
        raise UserError(f"nothing written: {found['skipped'][0]['reason']}")
    kept = figures(plain(found))
    if asked.write:
        FIGURES.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        PAGE.write_text(markdown(found), encoding="utf-8")
    print(json.dumps(kept) if asked.json else text(found))


if __name__ == "__main__":
    main()
