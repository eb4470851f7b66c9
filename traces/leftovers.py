"""What killed or removed runs leave in a store's folders, and what of it may be thrown away."""

from __future__ import annotations

import time
from pathlib import Path

from . import manifest
from .manifest import RunInfo

REMOVED = "removed.json"  # what a manifest is renamed to when its run is removed
_BEGINNING_S = 60.0


def left_behind(folder: Path) -> bool:
    """Whether a folder without a manifest is a killed process's, and not one that is just being begun."""
    try:
        idle = time.time() - folder.stat().st_mtime > _BEGINNING_S
    except FileNotFoundError:
        return False
    return idle and not (folder / manifest.NAME).exists()


def holds_rows(folder: Path) -> bool:
    """Whether a folder without a manifest has rows that nobody asked to remove.

    A run's first rows come after its manifest, so the manifest was lost.
    """
    return not (folder / REMOVED).exists() and any(folder.glob("*.parquet"))


def unlisted(folder: Path, info: RunInfo) -> list[Path]:
    """Files of ours that no manifest lists. Other files in the folder (reject files, a user's notes) are not ours."""
    known = {entry.path for entry in info.files}
    ours = (".parquet", ".tmp")
    return [path for path in sorted(folder.iterdir()) if path.suffix in ours and path.name not in known]
