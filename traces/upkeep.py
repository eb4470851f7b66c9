"""Looking after a store: what is damaged, what can be merged, what killed processes left."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import UserError
from .manifest import RunInfo
from .run import Run
from .storage import Home, Storage

if TYPE_CHECKING:
    from .store import Store

_TRIES = 50  # of a reader that runs into writers


def check(storage: Storage) -> list[str]:
    """Problems in words: damaged manifests, missing, torn or unlisted files. Empty if all is well."""
    return [problem for home in storage.homes() for problem in _check(home)]


def _check(home: Home) -> list[str]:
    for _ in range(_TRIES):
        if not home.exists():
            if home.holds_rows():
                return [f"no manifest in {home}, but rows: put it back, or `kvmill store remove {home.id}`"]
            left = home.left_behind()
            return [f"no manifest in {home}; `kvmill store compact` removes the folder"] if left else []
        try:
            info = home.read()
        except UserError as error:
            return [str(error)]
        broken = [home.problem(info, entry) for entry in info.files]
        problems = [f"{problem} (run {info.run_id})" for problem in broken if problem]
        problems += [
            f"unlisted file {home.name_of(name)} (run {info.run_id}): left by a killed process; "
            "`kvmill store compact` removes it"
            for name in _strays(home, info)
        ]
        if not problems or home.read() == info:
            return problems
    return []  # never the same twice: it is being written, and so not damaged


def _strays(home: Home, info: RunInfo) -> list[str]:
    """Files that nobody lists and nobody is about to."""
    if not home.unlisted(info) or home.writer() is not None:
        return []
    return home.unlisted(info)  # those that are still there: a writer may have ended just now


def compact(store: Store) -> int:
    """Merge the segments of finished runs and drop what nobody lists; returns the number of files removed."""
    removed = 0
    for home in store.storage.homes():
        held, left = home.holds(), home.left_behind()
        worth = not home.holds_rows() if left else home.exists() and _worth(Run(store, home))
        if not worth or not home.acquire():
            continue
        try:
            # Of what was listed, only that nobody began anything there can be trusted now that nobody else writes.
            removed += home.clear() if left else _compact(Run(store, store.storage.home(home.id)))
        finally:
            if not held:
                home.release()
    return removed


def _worth(run: Run) -> bool:
    """Whether there is anything to do: else taking the run from its writers would only cost."""
    info = run.info
    return (info.state != "running" and run.scattered()) or bool(run.home.unlisted(info))


def _compact(run: Run) -> int:
    info = run.info
    merged = run.merge(info.state, info.finished_at) if info.state != "running" else 0
    return merged + run.home.drop(run.home.unlisted(run.info))
