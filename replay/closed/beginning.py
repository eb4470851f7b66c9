"""The recorded beginning of closed-loop runs: fed to all policies at once, as in replay; then each goes its own way."""

from __future__ import annotations

from collections.abc import Sequence

from ...traces.tokens import TokenTrajectory, recall_prompts, repeat_prompts
from ...traces.trajectory import Trajectory
from ..branch import Held
from ..forward import Forward
from ..lockstep import Alone, Lockstep
from ..memory import released_on_error
from ..policies.base import Policy
from ..segments import turns_of
from ..session import NoRoom, Session
from ..talk import Talk


def begin(
    forward: Forward, trajectory: Trajectory, policies: Sequence[Policy], seeds: int, seed: int, window: int
) -> list[Session | str]:
    """A session per policy that has heard the prefix and the first `seeds` turns; in words, what a policy raised.

    `window`: most logical tokens of a session. NoRoom if it cannot hold the beginning.
    """
    tokenizer = forward.model.tokenizer
    talk = Talk.start(tokenizer, trajectory.tools)
    segments = talk.take(trajectory.prefix, trajectory.turns[:seeds])
    prompts = {**repeat_prompts(tokenizer), **recall_prompts(tokenizer)}
    text = TokenTrajectory(trajectory.id, trajectory.family, trajectory.source, tuple(segments), prompts=prompts)
    if text.tokens > window:
        raise NoRoom(f"{text.tokens} tokens, and model {forward.model.name} has room for {window}")
    run = Lockstep(forward, text, policies, seed, room=forward.model.max_positions)
    with released_on_error(run):
        held = _fed(run, seeds)
        begun: list[Session | str] = []
        for branch in run.branches:
            if branch.error is not None:
                begun.append(branch.error)
                continue
            parts = (talk.fork(), Alone.parted(run, branch), held[id(branch)])
            begun.append(Session(forward.model, branch.policy, (), seed, window=window, begun=parts))
    return begun


def _fed(run: Lockstep, seeds: int) -> dict[int, tuple[Held, ...]]:
    """Feed everything and close the recorded turns; what each branch held, by id(branch)."""
    held: dict[int, tuple[Held, ...]] = {id(branch): () for branch in run.branches}
    for turn, segments in enumerate(turns_of(run.trajectory)):
        for segment in segments:
            for chunk in run.chunks(segment):
                run.feed(chunk)
                run.look(chunk)
        if turn == seeds:
            break  # a prefix without a turn stays open
        run.compact(turn)
        run.catch_up()
        counters = run.settle(turn)
        for branch in run.alive:
            held[id(branch)] += (Held.of(run.logical, branch, counters[id(branch)]),)
    return held
