"""Branches fed in lockstep: one forward pass per chunk, each policy evicting on its own."""

from __future__ import annotations

import hashlib
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from ..errors import UserError
from ..traces.tokens import TokenSegment, TokenTrajectory
from .branch import Branch, Lane, TurnCounters
from .cache import process_bytes
from .forward import Forward, Observer
from .memory import is_out_of_memory, shortage
from .policies.base import CHECK_EVERY_TOKENS, Policy
from .policies.sight import Sight
from .policies.states import Chunk, Copy, Rewrite, Scene
from .segments import chunk_ends, sizes_of

T = TypeVar("T")


class Lockstep:
    """All branches of one trajectory. A branch that raises is marked failed and leaves; the others go on."""

    def __init__(
        self, forward: Forward, trajectory: TokenTrajectory, policies: Sequence[Policy], seed: int, room: int = 0
    ) -> None:
        """`room`: logical tokens that the trajectory may still grow to."""
        self.forward, self.trajectory = forward, trajectory
        sizes, shape = sizes_of(trajectory), forward.shape
        device = forward.model.device
        lane = forward.new_lane()
        # Draws of different trajectories must not be the same draw, or they would not be independent samples.
        own_seed = int(hashlib.sha256(f"{seed}/{trajectory.id}".encode()).hexdigest()[:12], 16)
        self.branches: list[Branch] = []
        scene = Scene(
            shape,
            max(room, sum(size.tokens for size in sizes)),
            own_seed,
            device,
            forward.frequencies if any(policy.needs_rotation for policy in policies) else None,
            trajectory.prompts,
            forward.readers,
        )
        for policy in policies:
            lane.riders += 1
            self.branches.append(Branch.start(policy, lane, sizes, scene))
        self.ids = [token for segment in trajectory.segments for token in segment.ids]
        self.logical = 0
        self.process_bytes_peak = 0

    @property
    def alive(self) -> list[Branch]:
        """Branches that have not failed."""
        return [branch for branch in self.branches if branch.error is None]

    def lanes(self) -> list[Lane]:
        """The distinct lanes of the branches alive, in branch order."""
        return list({id(branch.lane): branch.lane for branch in self.alive}.values())

    def chunks(self, segment: TokenSegment, begin: int = 0, end: int | None = None) -> Iterator[Chunk]:
        """The segment (or its tokens [begin, end)) cut where any policy may look."""
        checks = [c for branch in self.alive for c in branch.policy.checks(len(segment.ids))]
        stop = len(segment.ids) if end is None else end
        cuts = chunk_ends(len(segment.ids), checks, CHECK_EVERY_TOKENS)
        for cut in sorted({*(c for c in cuts if begin < c < stop), stop}):
            if cut > begin:
                yield Chunk(segment, begin, cut, self.logical)
            begin = cut

    @torch.inference_mode()
    def feed(self, chunk: Chunk) -> tuple[list[Lane], Tensor | None]:
        """Feed a chunk to every lane but those that hold it back; returns the lanes and hidden states (B, L, hidden).

        None instead of hidden states when nobody was fed.
        """
        feeding = [branch for branch in self.alive if not branch.state.holds_back(chunk)]
        for branch in self.alive:
            if branch not in feeding:
                branch.own_lane()
        lanes = list({id(branch.lane): branch.lane for branch in feeding}.values())
        watching: dict[int, list[Observer]] = {id(lane): [] for lane in lanes}
        reading: set[int] = set()
        ids = chunk.segment.ids[chunk.begin : chunk.end]
        with _held(lanes):
            for branch in feeding:
                if self._guard(branch, partial(branch.state.begin, chunk)):
                    watching[id(branch.lane)].append(partial(self._observe, branch))
                    reading |= {id(branch.lane)} if branch.state.reads else set()
            hidden = self._feed(lanes, ids, watching, reading) if lanes else None
        for branch in self.alive:
            self._guard(branch, partial(branch.state.fed, chunk))
        for branch in feeding:
            branch.fed(range(self.logical, self.logical + len(ids)))
        self.logical += len(ids)
        return lanes, hidden

    @torch.inference_mode()
    def look(self, chunk: Chunk) -> None:
        """Let the policies that asked for a check at the chunk's end evict."""
        for branch in self.alive:
            if chunk.end in branch.policy.checks(len(chunk.segment.ids)):
                self._guard(branch, partial(self._look, branch))

    @torch.inference_mode()
    def compact(self, turn: int) -> None:
        """The turn closes: every policy compacts what is due."""
        self.process_bytes_peak = max(self.process_bytes_peak, self.process_bytes())
        for branch in self.alive:
            self._guard(branch, partial(self._close, branch, turn))

    @torch.inference_mode()
    def catch_up(self) -> None:
        """Feed what text-level policies put after their cut."""
        for branch in self.alive:
            self._guard(branch, partial(self._catch_up, branch))

    def settle(self, turn: int) -> dict[int, TurnCounters]:
        """Check every branch against its footprint; returns the turn's counters by branch, and resets them."""
        out: dict[int, TurnCounters] = {}
        for branch in self.alive:
            self._guard(branch, partial(branch.check, turn))
            out[id(branch)] = branch.counters
            branch.counters = TurnCounters()
            branch.note_peak()
        return out

    def process_bytes(self) -> int:
        """Bytes of all caches, shared buffers once."""
        lanes = self.lanes()
        return process_bytes(lane.cache for lane in lanes) + sum(lane.fixed.nbytes for lane in lanes)

    def _feed(
        self, lanes: list[Lane], ids: Sequence[int], watching: dict[int, list[Observer]], reading: set[int]
    ) -> Tensor:
        observers = [watching[id(lane)] for lane in lanes]
        return self.forward.feed(lanes, ids, observers=observers, reading=[id(lane) in reading for lane in lanes])

    def _observe(self, branch: Branch, layer: int, sight: Sight) -> None:
        if branch.error is None:
            self._guard(branch, partial(branch.state.observe, layer, sight, branch.index[layer]))

    def _look(self, branch: Branch) -> None:
        eviction = branch.state.look(branch.index, branch.lane.cache)
        if eviction is not None:
            branch.evict(eviction)

    def _catch_up(self, branch: Branch) -> None:
        pending, branch.pending = branch.pending, []
        for begin in range(0, len(pending), CHECK_EVERY_TOKENS):
            part = pending[begin : begin + CHECK_EVERY_TOKENS]
            self.forward.feed([branch.lane], [self.ids[token] for token in part])
            branch.fed(part)

    def _copy(self, branch: Branch, copy: Copy) -> None:
        """Feed a copy for its queries only."""
        lane = branch.own_lane()
        rows = lane.cache.rows
        with lane.taken_back():
            for begin in range(0, len(copy.ids), CHECK_EVERY_TOKENS):
                ids = copy.ids[begin : begin + CHECK_EVERY_TOKENS]
                self.forward.feed([lane], ids, observers=[[partial(branch.state.observe_copy, copy, begin)]])
                branch.note_peak(copied=lane.cache.rows - rows)
        branch.counters.copied_tokens += len(copy.ids)

    def _close(self, branch: Branch, turn: int) -> None:
        for copy in branch.state.copies(turn):
            self._copy(branch, copy)
        outcome = branch.state.close(turn, branch.index, branch.lane.cache)
        if isinstance(outcome, Rewrite):
            branch.rewrite(outcome)
        elif outcome is not None:
            branch.evict(outcome)

    @staticmethod
    def _guard(branch: Branch, action: Callable[[], T]) -> T | None:
        """A policy's failure costs its own cell only; the row says why."""
        try:
            return action()
        except Exception as error:
            cache = branch.lane.cache
            branch.error = shortage(error, cache.rows, cache.nbytes) if is_out_of_memory(error) else reason(error)
            _leave(branch.lane)
            return None


def reason(error: Exception) -> str:
    """One line for a failed row: a user's mistake in its own words, a bug with the place where it shows."""
    if isinstance(error, UserError):
        return str(error)
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({frame.name}, line {frame.lineno})"


@contextmanager
def _held(lanes: Sequence[Lane]) -> Iterator[None]:
    """Lanes whose last branch fails during a pass stay until the pass is over: layers to come still read them."""
    for lane in lanes:
        lane.riders += 1
    try:
        yield
    finally:
        for lane in lanes:
            _leave(lane)


def _leave(lane: Lane) -> None:
    lane.riders -= 1
    if not lane.riders:
        lane.release()


class Alone(Lockstep):
    """One policy without a reference, whose errors are raised."""

    @classmethod
    def parted(cls, run: Lockstep, branch: Branch) -> Alone:
        """A branch of `run`, on a lane of its own, to go on by itself from what was fed. The others may part, too."""
        branch.own_lane()
        alone = cls.__new__(cls)
        vars(alone).update(vars(run) | {"branches": [branch], "ids": list(run.ids)})
        return alone

    @staticmethod
    def _guard(branch: Branch, action: Callable[[], T]) -> T:
        return action()
