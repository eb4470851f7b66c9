"""Two bundled families of synthetic, labelled agent runs, made by `generate` (read there what they can show)."""

from __future__ import annotations

import functools
import gzip
from pathlib import Path

from ..record import load as _read
from ..trajectory import Trajectory


@functools.cache
def _all() -> tuple[Trajectory, ...]:
    found = []
    for family in ("operations", "registry"):
        lines = gzip.decompress((Path(__file__).parent / f"{family}.jsonl.gz").read_bytes()).decode().splitlines()
        found += map(_read, lines)
    return tuple(found)


def load() -> list[Trajectory]:
    """The 80 bundled runs, by id: 40 of `operations`, then 40 of `registry`."""
    return list(_all())
