"""`PolicyProfile`: what replay hands to the simulator about one policy, beyond its arithmetic."""

from __future__ import annotations

from dataclasses import dataclass

from .policies.base import SegmentSize


@dataclass(frozen=True, slots=True)
class TimedCompactions:
    """Compactions that replay `run` timed on the GPU that calls itself `processor`, with weights and cache of `dtype`.

    `sessions`: of each trajectory its segments, and the seconds of compaction before the first token of some turns.
    """

    run: str
    processor: str
    dtype: str
    sessions: tuple[tuple[tuple[SegmentSize, ...], tuple[tuple[int, float], ...]], ...]


@dataclass(frozen=True, slots=True)
class PolicyProfile:
    """Measured facts of a policy, each null where it was not measured. Footprint and work are the policy's own.

    Accuracy figures are shares in [0, 1] with 95 % cluster-bootstrap intervals over `n` trajectories;
    `difference*` is policy minus `full`, paired by trajectory. `extra_turns` is the relative growth in turns
    (0.5 = half as many again) from closed-loop runs only, 0 for `full` itself. `keep_measured` is the mean share of
    tokens kept, where the policy's footprint is only a bound. `label_scorers` says what the accuracy is of (`scored`).
    `timed` are seconds of its compactions on a GPU.
    `until_decided`: trajectories were drawn until that was decided, which no interval here allows for.
    """

    policy: str
    run: str | None = None
    model: str | None = None
    n: int = 0
    answer_accuracy: float | None = None
    answer_accuracy_low: float | None = None
    answer_accuracy_high: float | None = None
    full_accuracy: float | None = None
    difference: float | None = None
    difference_low: float | None = None
    difference_high: float | None = None
    label_scorers: tuple[str, ...] = ()
    until_decided: bool = False
    extra_turns: float | None = None
    keep_measured: float | None = None
    extra_turns_source: str = "assumed none: no closed-loop run"
    timed: TimedCompactions | None = None

    def __post_init__(self) -> None:
        if self.policy == "full":  # what turns are extra to
            object.__setattr__(self, "extra_turns", 0.0)
            object.__setattr__(self, "extra_turns_source", "none by definition: full is the reference")
