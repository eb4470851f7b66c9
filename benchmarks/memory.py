"""Where freed memory goes while things are timed on a CPU: glibc decides by what was freed before, unless it is told.

Large blocks are mapped and given back one by one, and free memory at the end of the heap goes back to the system beyond
a threshold; both limits grow with the blocks that a process frees. Pages of the next blocks fault then, 0.7 µs each:
6 to 12 ms for the 36 MiB of SDPA with repeated KV, which otherwise takes 3. Whether it happens, and in whose call,
depends on what malloc put where: a call that frees a small block may give back all that the rival before it left.
"""

from __future__ import annotations

import ctypes
import resource
import sys
from pathlib import Path

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""Of `mallopt`, in glibc's malloc.h."""
LARGEST_BYTES = 32 << 20
"""Blocks from here on are always mapped on their own, whatever glibc has learned."""


def settle() -> bool:
    """The limits are at once where they end up in a process that has freed large blocks, and stay there.

    False where the C library has no such limits (it is not glibc).
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    return bool(mallopt(MMAP_THRESHOLD, LARGEST_BYTES)) and bool(mallopt(TRIM_THRESHOLD, 2 * LARGEST_BYTES))


def peak_rss_bytes() -> int:
    """The most memory that this process has held. On Linux of its own program alone: `getrusage` of a child also knows
    what its parent held when it was forked.
    """
    status = Path("/proc/self/status")
    if status.exists():
        held = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(held.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
