"""When work began and ended: by the CPU's clock, or by events on a GPU's stream that nobody waits for meanwhile."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, Protocol

import torch

Span = tuple[Any, Any]
"""Two marks of one clock: when something began and when it ended."""


class Clock(Protocol):
    """Marks points of the work; seconds are told afterwards."""

    def mark(self) -> Any:
        """A mark after all that was asked for so far."""
        ...

    def settle(self) -> None:
        """Wait until all marks have been passed: `seconds` may be asked from then on."""
        ...

    def seconds(self, spans: Iterable[Span]) -> float:
        """The sum of the spans."""
        ...


class CpuClock:
    """What returns is done: a mark is the time."""

    def mark(self) -> float:
        """Seconds of the monotonic clock."""
        return time.perf_counter()

    def settle(self) -> None:
        """There is nothing to wait for."""

    def seconds(self, spans: Iterable[Span]) -> float:
        """The sum of the spans."""
        return sum(end - begin for begin, end in spans)


class CudaClock:
    """Marks are events in the device's current stream, so that the host may run ahead, as it does in a server.

    A synchronisation per step would add its own microseconds to every token, and hide what host and device do at once.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def mark(self) -> torch.cuda.Event:
        """An event that the stream passes after what was launched so far."""
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def settle(self) -> None:
        """Wait for the device."""
        torch.cuda.synchronize(self._device)

    def seconds(self, spans: Iterable[Span]) -> float:
        """The sum of the spans; events count milliseconds."""
        return sum(begin.elapsed_time(end) for begin, end in spans) / 1e3


def clock_of(device: torch.device) -> Clock:
    """The clock of a device."""
    return CudaClock(device) if device.type == "cuda" else CpuClock()
