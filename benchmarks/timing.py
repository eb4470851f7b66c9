"""Medians of what is compared, taken in turn: on a CPU by the clock, on a GPU by events around queued work."""

from __future__ import annotations

import math
import os
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

FEWEST, MOST = 5, 50
SPAN_S = 5e-4
"""A measurement on a GPU lasts at least this long: events tick every half microsecond."""
BLOCKED_S = 0.05
BLOCKER_SIZE = 4096
WAITED_SHARE, TRIES, SETTLE_S = 0.1, 5, 0.02
"""A call on a CPU is measured again where its threads waited for a processor longer than this share of it."""

Form = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of one call: median, 20 % and 80 % quantiles over `repeats`.

    `host_s`, on a GPU, is how long the call keeps the CPU: what it costs where nothing is queued ahead of it.
    """

    seconds: float
    p20_s: float
    p80_s: float
    repeats: int
    host_s: float | None = None


def compared(
    forms: Mapping[str, Form],
    inputs: Sequence[Any],
    device: torch.device,
    budget_s: float,
    fewest: int = FEWEST,
) -> dict[str, Times | str]:
    """Times of every form over the same inputs, or for one that raised, the reason as one line.

    The forms take turns, `fewest` times at least, so that a slow minute of the machine hits all of them, and in another
    order each round, so that none always comes after the one that leaves the caches worst. Each call gets the next of
    `inputs`, whoever makes it: together they should be several times the cache, as a cache row is read once per step.
    """
    failed: dict[str, str] = {}

    def tried(name: str, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except Exception as error:
            failed[name] = _line(error)
            return None

    def warm(form: Form) -> None:
        form(inputs[0])
        _wait(device)

    for name, form in forms.items():
        tried(name, partial(warm, form))
    watch = _OnGpu(inputs, device) if device.type == "cuda" else _OnCpu(inputs)
    left = [name for name in forms if name not in failed]
    with closing(watch):
        spent = [tried(name, partial(watch.prepare, name, forms[name])) for name in left]
        rounds = min(MOST, max(fewest, int(budget_s / max(sum(filter(None, spent)), 1e-6))))
        spans: dict[str, list[float]] = {name: [] for name in left}
        order = random.Random(0)
        for _ in range(rounds):
            for name in order.sample(left, len(left)):
                if name not in failed:
                    spans[name].append(tried(name, partial(watch.seconds, name, forms[name])))
    return {name: failed.get(name) or _times(spans[name], watch.host_s.get(name)) for name in forms}


class _OnCpu:
    """The clock around one call. No two forms in a row get the same inputs: the second would find them in the cache.

    The threads of a parallel region may be put on one core. Then every region takes a turn of the scheduler, 8 ms where
    the arithmetic takes 0.1, until one of them sleeps and wakes elsewhere. A call whose threads waited for a core is
    made again.
    """

    def __init__(self, inputs: Sequence[Any]) -> None:
        self.inputs = inputs
        self.host_s: dict[str, float] = {}
        self.calls = 0
        self.waits = _Waits()

    def prepare(self, name: str, form: Form) -> float:
        """A second call of the warm-up, to know how many fit into the budget."""
        return self.seconds(name, form)

    def seconds(self, name: str, form: Form) -> float:
        """Of one call."""
        spent = math.inf
        for _ in range(TRIES):
            given = self.inputs[self.calls % len(self.inputs)]
            self.calls += 1
            waited, start = self.waits.seconds(), time.perf_counter()
            form(given)
            spent = time.perf_counter() - start
            if self.waits.seconds() - waited <= WAITED_SHARE * spent:
                break
            time.sleep(SETTLE_S)
        return spent

    def close(self) -> None:
        """Done with timing."""
        self.waits.close()


class _Waits:
    """How long the threads of this process have been ready to run and had no core; always 0 where no /proc tells.

    The files stay open: little runs between two calls, so that little of what the next one needs leaves the caches.
    """

    def __init__(self) -> None:
        paths = Path("/proc/self/task").glob("*/schedstat")
        self.files = [os.open(path, os.O_RDONLY) for path in paths]

    def seconds(self) -> float:
        """Of all threads together."""
        try:
            return sum(int(os.pread(file, 64, 0).split()[1]) for file in self.files) / 1e9
        except (OSError, IndexError):  # a thread has ended, or the system keeps no such statistics
            return 0.0

    def close(self) -> None:
        """No more questions."""
        for file in self.files:
            os.close(file)


class _OnGpu:
    """Events around calls that wait in the stream behind other work, so that gaps between launches do not count.

    A call that itself waits for the GPU is timed as it is, gaps included.
    """

    def __init__(self, inputs: Sequence[Any], device: torch.device) -> None:
        self.inputs, self.device = inputs, device
        self.host_s: dict[str, float] = {}
        self.calls: dict[str, int] = {}
        self.blocker = torch.randn(BLOCKER_SIZE, BLOCKER_SIZE, device=device, dtype=torch.bfloat16)
        self.blocker_s = 1.0
        self.blocker_s = min(self._events(lambda: self.blocker @ self.blocker, 4) for _ in range(3))

    def prepare(self, name: str, form: Form) -> float:
        """Measures how long the CPU takes to launch, and how many calls make a span."""
        _wait(self.device)
        start = time.perf_counter()
        for given in self.inputs:
            form(given)
        self.host_s[name] = (time.perf_counter() - start) / len(self.inputs)
        _wait(self.device)
        each = (time.perf_counter() - start) / len(self.inputs)
        rounds = max(1, math.ceil(SPAN_S / max(each * len(self.inputs), 1e-7)))
        self.calls[name] = rounds * len(self.inputs)
        return each * self.calls[name]

    def seconds(self, name: str, form: Form) -> float:
        """Of one call: a span over all inputs, divided."""
        calls = self.calls[name]
        wanted = min(1.5 * self.host_s[name] * calls, BLOCKED_S)
        for _ in range(math.ceil(wanted / self.blocker_s)):
            self.blocker @ self.blocker
        turn = iter(range(calls))
        return self._events(lambda: form(self.inputs[next(turn) % len(self.inputs)]), calls)

    def close(self) -> None:
        """Nothing is held open."""

    def _events(self, call: Callable[[], Any], calls: int) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(calls):
            call()
        end.record()
        _wait(self.device)
        return begin.elapsed_time(end) / 1e3 / calls


def _times(found: Sequence[float], host_s: float | None) -> Times:
    low, *_, high = statistics.quantiles(found, n=5, method="inclusive")
    return Times(statistics.median(found), low, high, len(found), host_s)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _line(error: Exception) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0][:200]}" if text else type(error).__name__
