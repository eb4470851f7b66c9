"""Where the time of a replay goes: seconds by part, each part without what other parts did inside it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

from ..replay import engine
from ..replay.forward import Forward, Pass
from ..replay.lockstep import Lockstep

REST = "rest"
LAYERS, ATTENTION, HEAD, SCORES = "linear layers", "attention", "output head", "scores"
POLICIES, PROBES, ACTIONS = "policies", "probes", "actions"
PARTS: tuple[tuple[Any, str, str], ...] = (
    (Forward, "feed", LAYERS),  # what is left of a pass without its attention
    (Pass, "attend", ATTENTION),
    (Forward, "log_probabilities", HEAD),
    (engine, "score_chunk", SCORES),
    (Lockstep, "_observe", POLICIES),
    (Lockstep, "look", POLICIES),
    (Lockstep, "compact", POLICIES),
    (Lockstep, "catch_up", POLICIES),
    (engine, "answer_probes", PROBES),
    (engine, "next_actions", ACTIONS),
)


class Profile:
    """`seconds` by part. What is timed inside a part counts for the inner one alone."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._stack = [REST]
        self._since = time.perf_counter()

    @contextmanager
    def inside(self, part: str) -> Iterator[None]:
        """Whatever happens here is the part's."""
        self._count()
        self._stack.append(part)
        try:
            yield
        finally:
            self._count()
            self._stack.pop()

    def shares(self) -> dict[str, float]:
        """Of all the time, the largest first."""
        total = sum(self.seconds.values())
        return {part: s / total for part, s in sorted(self.seconds.items(), key=lambda item: -item[1]) if total}

    def _count(self) -> None:
        now = time.perf_counter()
        part = self._stack[-1]
        self.seconds[part] = self.seconds.get(part, 0.0) + now - self._since
        self._since = now

    def close(self) -> None:
        """Nothing after this counts."""
        self._count()


@contextmanager
def profiled() -> Iterator[Profile]:
    """Time what the engine does inside the block. Not for several threads."""
    profile = Profile()
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in PARTS]
    for owner, name, part in PARTS:
        setattr(owner, name, _timed(getattr(owner, name), part, profile))
    try:
        yield profile
    finally:
        profile.close()
        for owner, name, function in before:
            setattr(owner, name, function)


def _timed(function: Callable[..., Any], part: str, profile: Profile) -> Callable[..., Any]:
    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with profile.inside(part):
            return function(*args, **kwargs)

    return call
