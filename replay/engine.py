"""The main path: one tokenised trajectory through the model under every policy, turn by turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from ..traces.tokens import ProbeTokens, TokenTrajectory
from .branch import Branch, TurnCounters
from .forward import Forward
from .lockstep import Lockstep
from .memory import released_on_error
from .metrics import TurnQuality, score_chunk
from .policies.base import Policy, Work
from .policies.mass_state import MassState
from .probes import ProbeAnswer, answer_probes
from .segments import turns_of
from .stepwise import Asking, next_actions


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """One turn of one branch: quality sums, what it held after the turn and at most inside it, what it did.

    `said` are the tokens it would have said at this turn, None where it was not asked.
    """

    turn: int
    logical_tokens: int
    quality: TurnQuality
    kv_rows: int
    kv_bytes: int
    aux_bytes: int
    counters: TurnCounters
    work: Work
    said: tuple[int, ...] | None = None


@dataclass
class BranchRun:
    """Everything measured on one branch. `error` says why it ended early; `kept` is by logical token.

    `mass`, of `full` alone and where it was asked for, is by logical token too: see `MassState`.
    """

    policy: Policy
    turns: list[TurnRecord] = field(default_factory=list)
    probes: list[ProbeAnswer] = field(default_factory=list)
    kept: Tensor | None = None
    mass: Tensor | None = None
    process_bytes: int = 0
    error: str | None = None


def replay(
    forward: Forward,
    trajectory: TokenTrajectory,
    policies: Sequence[Policy],
    probes: Sequence[ProbeTokens] = (),
    seed: int = 0,
    asking: Asking | None = None,
    explain: bool = False,
) -> list[BranchRun]:
    """Teacher-forced replay. `policies[0]` is `full`, the reference of every quality figure.

    Recorded tokens are fed turn by turn; when a turn closes every policy compacts; later recorded assistant
    tokens, and the probes after the last turn, are scored on what is left. `asking` makes it stepwise: before each
    recorded assistant turn from the second on, every policy generates what it would say, which is taken back.
    `explain` also adds up the attention that each token receives in the reference run.
    """
    run = Lockstep(forward, trajectory, policies, seed)
    if explain:
        full = run.branches[0]
        full.state = MassState(full.policy, full.state.scene)
    with released_on_error(run):
        return _replay(run, probes, seed, asking)


def _replay(run: Lockstep, probes: Sequence[ProbeTokens], seed: int, asking: Asking | None) -> list[BranchRun]:
    forward, full = run.forward, run.branches[0]
    runs = {id(branch): BranchRun(branch.policy) for branch in run.branches}
    for turn, segments in enumerate(turns_of(run.trajectory)):
        quality = {id(branch): TurnQuality() for branch in run.branches}
        said: dict[int, tuple[int, ...]] = {}
        for segment in segments:
            if asking is not None and turn > 0 and segment.kind == "assistant":
                said = next_actions(run, segment, asking, seed)
            for chunk in run.chunks(segment):
                lanes, hidden = run.feed(chunk)
                scores = {} if hidden is None else score_chunk(forward, chunk, lanes, hidden, full.lane)
                for branch in run.alive:
                    if id(branch.lane) in scores:
                        quality[id(branch)].add(scores[id(branch.lane)])
                run.look(chunk)
        run.compact(turn)
        run.catch_up()
        if full.error is not None:
            raise RuntimeError(f"the reference run failed: {full.error}")
        for key, counters in run.settle(turn).items():
            branch = next(b for b in run.branches if id(b) == key)
            runs[key].turns.append(_record(run, branch, turn, quality[key], counters, said.get(key)))
    answers = answer_probes(forward, run.alive, probes)
    for branch in run.branches:
        result = runs[id(branch)]
        result.error, result.process_bytes = branch.error, run.process_bytes_peak
        if branch.error is None:
            result.probes = answers[id(branch)]
            result.kept = branch.kept_share(run.logical)
    if isinstance(full.state, MassState):
        runs[id(full)].mass = full.state.mass[: run.logical]
    return list(runs.values())


def _record(
    run: Lockstep,
    branch: Branch,
    turn: int,
    quality: TurnQuality,
    counters: TurnCounters,
    said: tuple[int, ...] | None,
) -> TurnRecord:
    return TurnRecord(
        turn=turn,
        logical_tokens=run.logical,
        quality=quality,
        kv_rows=branch.rows,
        kv_bytes=branch.lane.cache.nbytes,
        aux_bytes=branch.aux_bytes,
        counters=counters,
        work=branch.work[turn],
        said=said,
    )
