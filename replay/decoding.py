"""One reply of the model on a compacted cache, token by token, stopping wherever the policy looks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ..traces.tokens import TokenSegment
from .lockstep import Lockstep
from .model import LoadedModel, end_ids
from .talk import Frame

Ended = Literal["end", "stop", "max_tokens", "window"]


@dataclass(frozen=True, slots=True)
class Ending:
    """What ends a message: one of `ids`, or, where a template closes messages by text alone, the text `closes`."""

    ids: frozenset[int]
    closes: str

    @classmethod
    def of(cls, frame: Frame, model: LoadedModel) -> Ending:
        """By what the template puts after a message, and by the model's own configuration."""
        known = model.tokenizer.control_ids
        control = [token for token in frame.closing if token in known]
        return cls(frozenset(control[:1]) | (end_ids(model.module) & known), "" if control else frame.printed)


@dataclass(frozen=True, slots=True)
class Rules:
    """How tokens are picked, and when a reply ends.

    An id of `ends` ends it and is no part of it; a string that `stops` finds ends it and is one. `most` ids at most:
    `limit` says what ran out then.
    """

    pick: Callable[[Tensor], int]
    stops: Callable[[Sequence[int]], bool]
    ends: frozenset[int]
    most: int
    limit: Ended


@dataclass(frozen=True, slots=True)
class Draft:
    """A reply: the ids that were picked, and how many of [head + ids] the engine holds already."""

    ids: tuple[int, ...]
    fed: int
    ended: Ended


@torch.inference_mode()
def speak(run: Lockstep, head: Sequence[int], rules: Rules, grown: Callable[[Sequence[int]], TokenSegment]) -> Draft:
    """Decode after `head` on the lane of the only branch of `run`.

    What is decoded is taken back, since the policy must see the finished segment. Only where the policy looks inside
    segments, `grown` makes a segment of the ids so far, which is fed and looked at, and the reply goes on from there.
    """
    branch, forward = run.branches[0], run.forward
    longest = len(head) + rules.most
    # Whether a check is on the policy's grid or is the segment's end is known of longer segments only.
    checks = [check for check in branch.policy.checks(longest + 1) if check <= longest]
    ids, said, fed = list(head), list[int](), 0
    last: Tensor | None = None
    while True:
        due = max((check for check in checks if fed < check <= len(ids)), default=0)
        if due:
            last, fed = _commit(run, grown(ids[:due]), fed), due
        with branch.lane.taken_back():
            if fed < len(ids):
                last = forward.feed([branch.lane], ids[fed:])[0, -1]
            while True:
                assert last is not None
                token = rules.pick(forward.log_probabilities(last))
                if token in rules.ends:
                    return Draft(tuple(said), fed, "end")
                ids.append(token)
                said.append(token)
                if rules.stops(said):
                    return Draft(tuple(said), fed, "stop")
                if len(said) == rules.most:
                    return Draft(tuple(said), fed, rules.limit)
                if len(ids) in checks:
                    break
                last = forward.feed([branch.lane], [token])[0, -1]


def _commit(run: Lockstep, segment: TokenSegment, begin: int) -> Tensor:
    """Feed the segment from `begin` on and let the policy look; the last hidden state, as before the look."""
    last: Tensor | None = None
    for chunk in run.chunks(segment, begin):
        _, hidden = run.feed(chunk)
        run.look(chunk)
        assert hidden is not None
        last = hidden[0, -1]
    assert last is not None
    return last
