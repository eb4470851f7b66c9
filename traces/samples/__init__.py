"""The bundled runs: synthetic, made by `generate` (read there what they can show), by the name of their set."""

from __future__ import annotations

import functools
import gzip
from pathlib import Path

from ..record import load as _read
from ..trajectory import Trajectory

# Set → its files. Published figures rest on `samples`: its runs stay what they are.
SETS = {"samples": ("operations", "registry"), "samples-more": ("coding", "planning"), "stress": ("stress",)}


@functools.cache
def _of_set(name: str) -> tuple[Trajectory, ...]:
    found: list[Trajectory] = []
    for file in SETS[name]:
        lines = gzip.decompress((Path(__file__).parent / f"{file}.jsonl.gz").read_bytes()).decode().splitlines()
        found += map(_read, lines)
    return tuple(found)


def load(name: str = "samples") -> list[Trajectory]:
    """The runs of a set, by id: `samples` (80, two families), `samples-more` (80, two), `stress` (12, not judged)."""
    return list(_of_set(name))


def named(id: str) -> Trajectory | None:
    """The bundled run of that id, whichever set it is in, or None."""
    return _by_id().get(id)


@functools.cache
def _by_id() -> dict[str, Trajectory]:
    return {run.id: run for name in SETS for run in _of_set(name)}
