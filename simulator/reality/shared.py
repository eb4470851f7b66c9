"""Where recorded runs are, and which comparisons had to be left out because they are not there."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from ...errors import UserError

VARIABLE = "KVMILL_SHARED_DATA"
NOWHERE = f"no folder of recorded runs (give --data FOLDER, or set {VARIABLE} to it)"


class Comparison(NamedTuple):
    """A simulated figure and the measured one. `limit` bounds their relative error, or their `absolute` difference."""

    name: str
    value: float
    truth: float
    limit: float
    error: Literal["relative", "absolute"] = "relative"


@dataclass(slots=True)
class Shared:
    """A folder of recorded runs, or None; `skipped` collects (name, reason)."""

    folder: Path | None
    skipped: list[tuple[str, str]] = field(default_factory=list)

    @classmethod
    def find(cls, folder: Path | str | None) -> Shared:
        """The folder asked for, else the one of the environment. UserError when what was asked for is not there."""
        named = folder or os.environ.get(VARIABLE)
        if named is None:
            return cls(None)
        path = Path(named).expanduser()
        if not path.is_dir():
            raise UserError(f"{'--data' if folder else VARIABLE} {named}: no such folder of recorded runs")
        return cls(path / "serving" if (path / "serving").is_dir() else path)

    def path(self, name: str, what: str) -> Path | None:
        """The file of that name below the folder; None when it is absent, with `what` then noted as skipped."""
        path = self.folder / name if self.folder else None
        if path is not None and path.is_file():
            return path
        self.skipped.append((what, NOWHERE if path is None else f"{name} is not in the folder of recorded runs"))
        return None
