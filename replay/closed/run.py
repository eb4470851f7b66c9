"""Closed-loop replay of one trajectory: every policy begins as recorded, then its model acts until it has answered."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from ...errors import UserError
from ...traces.tokens import ProbeTokens, tokenize_probe
from ...traces.trajectory import Trajectory
from ..forward import Forward
from ..policies.base import Policy
from ..rows import Identity, Rows, failed_rows, skipped_rows
from ..session import NoRoom
from .actor import Actor, one_round
from .agent import Agent, Speech
from .beginning import begin
from .cells import cell_columns, probe_rows, turn_rows
from .environment import TOP, Environment, Library
from .episode import Episode, seed_turns, turn_limit
from .repeats import Similarity

SEED_TURNS = 2


@dataclass(frozen=True, slots=True)
class Closed:
    """The settings of a run. `max_turns` None: twice the recorded turns and some more."""

    seeds: int
    max_turns: int | None
    top: int = TOP

    @classmethod
    def of(cls, seeds: int | None, max_turns: int | None) -> Closed:
        """UserError for settings under which no model would ever speak."""
        seeds = SEED_TURNS if seeds is None else seeds
        if seeds < 0:
            raise UserError(f"--seed-turns must be 0 or more, not {seeds}")
        if max_turns is not None and max_turns <= seeds:
            raise UserError(f"--max-turns {max_turns} leaves no turn to the model after {seeds} recorded ones")
        return cls(seeds, max_turns)


class Loop:
    """Runs the cells of a trace set."""

    def __init__(
        self,
        forward: Forward,
        trajectories: Sequence[Trajectory],
        grammars: Mapping[str, str],
        settings: Closed,
        speech: Speech,
    ) -> None:
        self._forward, self._grammars, self._settings, self._speech = forward, grammars, settings, speech
        self._library = Library(trajectories, grammars, settings.top)
        self._similar = Similarity(self._library.queries)
        self.tell: Callable[[str], None] = lambda _: None
        """Is told how far a trajectory is, after every turn."""

    @property
    def spelled(self) -> str:
        """What makes its cells others than those of another trace set or of other settings."""
        settings = self._settings
        return f"{settings.seeds}/{settings.max_turns}/{settings.top}/{self._library.fingerprint}"

    def rows(self, identity: Identity, trajectory: Trajectory, policies: Sequence[Policy]) -> Rows:
        """The rows of all policies on one trajectory. What one policy raises is its own failed row."""
        probes = [tokenize_probe(probe, self._forward.model.tokenizer) for probe in trajectory.probes]
        actors = [Actor(policy) for policy in policies]
        self._begin(actors, trajectory, probes)
        while going := [actor for actor in actors if actor.going]:
            one_round(self._forward, going)
            turns = max(actor.run[1].turns for actor in going)
            self.tell(f"{trajectory.id} turn {turns}, {len(going)} policies")
        out: Rows = {"cells": [], "turn_metrics": [], "probes": []}
        for actor in actors:
            if actor.episode is not None and actor.error is None:
                actor.guarded(partial(self._end, actor, probes))
            for table, rows in self._rows(identity, trajectory, actor).items():
                out[table] += rows
        return out

    def _begin(self, actors: Sequence[Actor], trajectory: Trajectory, probes: Sequence[ProbeTokens]) -> None:
        reserve = max((len(probe.stem) + max(map(len, probe.candidates)) for probe in probes), default=0)
        seeds, grammar = seed_turns(self._settings.seeds, len(trajectory.turns)), self._grammars[trajectory.source]
        window, policies = self._forward.model.max_positions - reserve, [actor.policy for actor in actors]
        try:
            begun = begin(self._forward, trajectory, policies, seeds, self._speech.seed, window)
        except NoRoom as error:
            for actor in actors:
                actor.skipped = f"the first {seeds} turns of trajectory {trajectory.id}, beside its probes: {error}"
            return
        most = self._settings.max_turns or turn_limit(len(trajectory.turns))
        for actor, session in zip(actors, begun, strict=True):
            if isinstance(session, str):
                actor.error = session
                continue
            actor.agent = Agent(session, trajectory.id, self._speech)
            place = Environment(trajectory, self._library, grammar, seeds)
            actor.episode = Episode(place, grammar, seeds, most)

    @staticmethod
    def _end(actor: Actor, probes: Sequence[ProbeTokens]) -> None:
        agent, _ = actor.run
        actor.ran = agent.finish(probes)

    def _rows(self, identity: Identity, trajectory: Trajectory, actor: Actor) -> Rows:
        if actor.error is not None:
            return failed_rows(identity, [actor.policy], "quality", actor.error)
        if actor.episode is None or actor.ran is None:
            return skipped_rows(identity, [actor.policy], "quality", actor.skipped or "")
        key = identity.cell(actor.policy, "quality")
        shared = {**key, "measure": "quality"}
        cell = cell_columns(trajectory, actor.episode, actor.ran, self._similar)
        return {
            "cells": [{**shared, **identity.columns(), **cell}],
            "turn_metrics": [{**shared, **row} for row in turn_rows(actor.episode, actor.ran)],
            "probes": [{**key, **row} for row in probe_rows(trajectory, actor.ran)],
        }
