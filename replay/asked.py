"""What a replay is asked for (`Asked`), and what a loaded model makes of it (`Settled`): both go to every worker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import UserError, unknown
from ..traces.record import content_hash
from ..traces.tokens import tokenize
from ..traces.trajectory import Trajectory
from .actions.choose import grammar_for, require_known
from .closed.run import Closed
from .equal import hold_equal
from .fitting import LONG
from .model import LoadedModel, load_model
from .policies.base import Policy
from .policies.registry import parse_policies, parse_policy
from .segments import sizes_of
from .stepwise import Asking, longest_reply
from .wanted import MEASURES

COMPACTED = "already compacted when it was recorded; --include-compacted replays it"
NO_PREFIX = "no message before the first reply: there is nothing that it could answer"
NO_TURN = "no reply was recorded: there is nothing to replay"
CONTENTS = "trajectory_contents"  # in a run's config: what every trajectory was, probes included, by id


@dataclass(frozen=True)
class Asked:
    """The arguments of `fanout.run_replay` that decide its rows. UserError where they cannot be."""

    trajectories: Sequence[Trajectory]
    model: str
    policies: Sequence[str]
    measure: str = "quality"
    seed: int = 0
    dtype: str = "auto"
    device: str = "auto"
    threads: int | None = None
    latency_trajectories: Sequence[str] | None = None
    latency_repeats: int = 3
    latency_last_turns: int | None = None
    equal_size: str | None = None
    equal_by: str | None = None
    mode: str = "teacher"
    temperature: float = 0.0
    max_action_tokens: int | None = None
    actions: str | None = None
    long: str = "skip"
    include_compacted: bool = False
    explain: bool = False
    seed_turns: int | None = None
    max_turns: int | None = None

    def __post_init__(self) -> None:
        if self.measure not in MEASURES:
            raise UserError(f"--measure {self.measure}: one of {', '.join(MEASURES)}")
        if self.long not in LONG:
            raise unknown("rule", self.long, LONG, "--long")
        if self.latency_repeats < 1:
            raise UserError(f"latency_repeats {self.latency_repeats}: 1 or more")
        if not self.trajectories:
            raise UserError("no trajectories to replay: check --traces and --limit")
        parse_policies(list(self.policies))
        if self.actions:
            require_known(self.actions)

    @property
    def timed(self) -> list[Trajectory]:
        """The trajectories that get latency cells: those named, else all."""
        chosen = self.latency_trajectories
        return [t for t in self.trajectories if chosen is None or t.id in chosen]

    def left_out(self, trajectory: Trajectory) -> str | None:
        """Why a trajectory is not replayed, None if it is."""
        if trajectory.already_compacted and not self.include_compacted:
            return COMPACTED
        if not trajectory.turns:
            return NO_TURN
        return None if trajectory.prefix else NO_PREFIX

    def load(self, *, device: str | None = None, threads: int | None = None, spread: bool = False) -> LoadedModel:
        """The model; what a worker was given (`device`, `threads`) goes before what was asked."""
        return load_model(
            self.model,
            device=device or self.device,
            dtype=self.dtype,
            threads=threads or self.threads,
            spread=spread,
        )


@dataclass(frozen=True)
class Settled:
    """What follows from the arguments and the model: the same for all workers of a run.

    `most`: tokens of the longest action, None where none is generated. `settings`: what the run's config records, and
    a resumed run must agree with.
    """

    policies: tuple[Policy, ...]
    grammars: Mapping[str, str]
    most: int | None
    closed: Closed | None
    settings: Mapping[str, Any]


def settle(asked: Asked, loaded: LoadedModel) -> Settled:
    """UserError on settings that make no sense with this model."""
    chosen = parse_policies(list(asked.policies))
    closed = Closed.of(asked.seed_turns, asked.max_turns) if asked.mode == "closed" else None
    grammars, most = _actions(asked, closed, loaded)
    if asked.equal_size is not None:
        chosen = _held_equal(asked, chosen, loaded)
    settings = {
        "model": asked.model,
        "policies": [str(policy) for policy in chosen],
        "equal_size": asked.equal_size,
        "equal_by": asked.equal_size and (asked.equal_by or "peak"),
        "measure": asked.measure,
        "mode": asked.mode,
        "actions": grammars or None,
        "temperature": None if most is None else asked.temperature,
        "max_action_tokens": most,
        "seed_turns": closed.seeds if closed else None,
        "max_turns": closed.max_turns if closed else None,
        "long": asked.long,
        "include_compacted": asked.include_compacted,
        "explain": asked.explain,
        "dtype": loaded.dtype_name,
        "device": str(loaded.device),
        "threads": loaded.threads,
        "layers": loaded.layer_counts(),
        "seed": asked.seed,
        "fingerprint": loaded.fingerprint,
        "trajectory_ids": [trajectory.id for trajectory in asked.trajectories],
        CONTENTS: {trajectory.id: content_hash(trajectory) for trajectory in asked.trajectories},
        "latency_trajectories": None if asked.latency_trajectories is None else list(asked.latency_trajectories),
        "latency_repeats": asked.latency_repeats,
        "latency_last_turns": asked.latency_last_turns,
    }
    return Settled(tuple(chosen), grammars, most, closed, settings)


def _actions(asked: Asked, closed: Closed | None, loaded: LoadedModel) -> tuple[dict[str, str], int | None]:
    """The grammar of each source and the longest action, where actions are generated."""
    if asked.mode != "stepwise" and closed is None:
        return {}, None
    most = asked.max_action_tokens
    if most is None:
        most = longest_reply(asked.trajectories, loaded.tokenizer)
    Asking.of(loaded, most, asked.temperature)  # refuses before anything is begun
    calling = {t.source for t in asked.trajectories if any(turn.assistant.tool_calls for turn in t.turns)}
    return {
        source: asked.actions or grammar_for(source, loaded.tokenizer, asked.model, calls=source in calling)
        for source in sorted({trajectory.source for trajectory in asked.trajectories})
    }, most


def _held_equal(asked: Asked, chosen: Sequence[Policy], loaded: LoadedModel) -> list[Policy]:
    counted = [trajectory for trajectory in asked.trajectories if asked.left_out(trajectory) is None]
    if not counted:
        return list(chosen)  # every cell is skipped
    whole = [tokenize(trajectory, loaded.tokenizer) for trajectory in counted]
    fitting = [tokens for tokens in whole if tokens.tokens <= loaded.max_positions] or whole
    sizes = [sizes_of(tokens) for tokens in fitting]
    return hold_equal(chosen, parse_policy(asked.equal_size or ""), sizes, asked.equal_by or "peak")
