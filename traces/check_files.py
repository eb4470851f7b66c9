"""A look at files without storing anything: what would be refused or lost, and what is odd in what is left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import UserError
from . import checks
from .files import read_file
from .ingest import expand
from .trajectory import Trajectory

_EXAMPLES = 10


def check_files(paths: Sequence[str | Path], format: str = "auto") -> dict[str, Any]:
    """`records` and `rejected` in all; per file its format, losses, findings and the first examples in words.

    UserError if an input matches no file; a file that cannot be read has an `error`.
    """
    files = [_check(path, format) for path in expand(paths)]
    return {
        "records": sum(file["records"] for file in files),
        "rejected": sum(file["rejected"] for file in files),
        "files": files,
    }


def _check(path: Path, format: str) -> dict[str, Any]:
    losses: Counter[str] = Counter()
    found: Counter[str] = Counter()
    examples: list[str] = []
    out: dict[str, Any] = {"path": str(path), "format": None, "records": 0, "rejected": 0, "error": None}
    try:
        chosen, items, _ = read_file(path, format)
        out["format"] = chosen.name
        for item in items:
            if item.value is None:
                out["rejected"] += 1
                examples = [*examples, f"record {item.place} would be rejected: {item.reason}"][:_EXAMPLES]
                continue
            if isinstance(item.value, Trajectory):
                losses.update(loss.partition(":")[0] for loss in item.value.losses)
                findings = checks.trajectory_findings(item.value)
            else:
                findings = checks.request_findings(item.value)
            out["records"] += 1
            found.update(finding.code for finding in findings)
            said = [f"record {item.place}, {finding.where}: {finding.text}" for finding in findings]
            examples = [*examples, *said][:_EXAMPLES]
    except UserError as error:
        out["error"] = str(error)
    return out | {"losses": dict(losses), "findings": dict(found), "examples": examples}
