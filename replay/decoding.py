"""One reply of the model on a compacted cache, token by token, stopping wherever the policy looks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ..traces.tokens import TokenSegment
from .branch import Lane
from .forward import Forward
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
class Asked:
    """A reply that is to be generated: what stands around it, how it is picked and ends, the text that closes it."""

    frame: Frame
    rules: Rules
    closes: str


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
                ended = _ended(rules, rules.pick(forward.log_probabilities(last)), said)
                if ended is not None:
                    return Draft(tuple(said), fed, ended)
                ids.append(said[-1])
                if len(ids) in checks:
                    break
                last = forward.feed([branch.lane], [said[-1]])[0, -1]


@torch.inference_mode()
def speak_together(forward: Forward, lanes: Sequence[Lane], asked: Sequence[Asked]) -> list[Draft]:
    """What `speak` decodes on each of several lanes, one token each in one pass: for policies that do not look inside.

    A lane that has come to its end drops out; heads of one length begin together.
    """
    drafts: dict[int, Draft] = {}
    heads = [each.frame.head for each in asked]
    said: list[list[int]] = [[] for _ in lanes]
    with ExitStack() as stack:
        for lane in lanes:
            stack.enter_context(lane.taken_back())
        for length in sorted({len(head) for head in heads}):
            speaking = [number for number, head in enumerate(heads) if len(head) == length]
            ids: list[Sequence[int]] = [heads[number] for number in speaking]
            while speaking:
                last = forward.feed([lanes[number] for number in speaking], ids)[:, -1]
                for number, row in zip(speaking, forward.log_probabilities(last), strict=True):
                    rules = asked[number].rules
                    if ended := _ended(rules, rules.pick(row), said[number]):
                        drafts[number] = Draft(tuple(said[number]), 0, ended)
                speaking = [number for number in speaking if number not in drafts]
                ids = [[said[number][-1]] for number in speaking]
    return [drafts[number] for number in range(len(lanes))]


def _ended(rules: Rules, token: int, said: list[int]) -> Ended | None:
    """Take a token; why the reply ends with it, None if it goes on."""
    if token in rules.ends:
        return "end"
    said.append(token)
    if rules.stops(said):
        return "stop"
    return rules.limit if len(said) == rules.most else None


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
