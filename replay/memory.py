"""Running out of memory: known for what it is, told with the sizes that did not fit, and given back."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from ..errors import UserError

if TYPE_CHECKING:
    from .lockstep import Lockstep

# How torch's allocator for the CPU says it, in an error of no class of its own.
_SAID = ("can't allocate memory", "not enough memory")


class OutOfMemory(UserError):
    """A cell did not fit. Fewer policies at once, shorter trajectories or a larger machine help."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed, in Python or in torch, on a CPU or a GPU."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError, OutOfMemory)):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _SAID)


def shortage(error: BaseException, rows: int, held_bytes: int) -> str:
    """One line for the row of a policy that could not allocate what it needed for its own."""
    return f"out of memory with {rows} rows, {_mib(held_bytes)} of KV held ({_first_line(error)})"


@contextmanager
def released_on_error(run: Lockstep) -> Iterator[None]:
    """If the block raises, every cache of `run` is given up; out of memory is raised anew, with its sizes."""
    try:
        yield
    except Exception as error:
        held, lanes, policies = run.process_bytes(), run.lanes(), len(run.alive)
        for lane in lanes:
            lane.release()
        if not is_out_of_memory(error):
            raise
        raise OutOfMemory(
            f"out of memory after {run.logical} of {len(run.ids)} tokens: {policies} policies on {len(lanes)} caches "
            f"held {_mib(held)} ({_first_line(error)}); replay fewer policies at once, or shorter trajectories"
        ) from None


def give_back(device: torch.device) -> None:
    """After a failed cell: free what only its exception's frames held, and what the allocator keeps for later."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _mib(count: int) -> str:
    return f"{count / 2**20:.1f} MiB"


def _first_line(error: BaseException) -> str:
    said = str(error).strip()
    return said.splitlines()[0] if said else type(error).__name__
