"""The model as the one who acts: a session on a compacted cache, fed the recorded beginning, then speaking itself."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ...traces.tokens import ProbeTokens
from ...traces.trajectory import Message
from ..actions.action import begun_thinking
from ..branch import Held, Lane
from ..decoding import Asked, Draft
from ..probes import ProbeAnswer, answer_probes
from ..segments import sizes_of
from ..session import NoRoom, Session
from .episode import Said


@dataclass(frozen=True, slots=True)
class Speech:
    """How replies are generated: `most` tokens at most, greedy at temperature 0, else drawn with the cell's seed."""

    most: int
    temperature: float
    seed: int


@dataclass(frozen=True, slots=True)
class Ran:
    """What a run left: what was held by turn, the probes asked on the final cache, and the compaction's FLOPs."""

    held: tuple[Held, ...]
    probes: tuple[ProbeAnswer, ...]
    compaction_flops: float


class Agent:
    """A `Speaker`: a session that has heard the recorded beginning (`beginning.begin`)."""

    def __init__(self, session: Session, trajectory: str, speech: Speech) -> None:
        """`trajectory`: its id, which decides the draws."""
        self.session, self._name, self._speech = session, trajectory, speech
        self._turn = len(session.held)

    def speak(self) -> Said | None:
        """The next reply, generated from the compacted cache."""
        asked = self.ask()
        return None if asked is None else self.take(asked, self.session.draft(asked))

    def ask(self) -> Asked | None:
        """Close the turn before, and get ready; None if there is no room for a reply. Equal seeds, equal draws."""
        drawn = hashlib.sha256(f"{self._speech.seed}/{self._name}/{self._turn}/action".encode()).hexdigest()
        temperature, seed = self._speech.temperature, int(drawn[:12], 16)
        try:
            return self.session.ask(max_tokens=self._speech.most, temperature=temperature, seed=seed)
        except NoRoom:
            return None

    def take(self, asked: Asked, draft: Draft) -> Said:
        """The reply, which the session holds from now on."""
        text = self.session.answer(asked, draft)
        self._turn += 1
        return Said(self._thought() + text, self.session.said_tokens, self.session.ended == "end")

    def speaks_alone(self, asked: Asked) -> bool:
        """Whether the policy looks at the cache while a reply grows: it cannot decode beside others then."""
        return self.session.looks_inside(len(asked.frame.head) + asked.rules.most)

    def hear(self, message: Message) -> bool:
        """A tool's answer."""
        try:
            self.session.add(message)
        except NoRoom:
            return False
        return True

    @property
    def lane(self) -> Lane:
        """The cache it speaks from."""
        return self.session.run.branches[0].lane

    @property
    def device(self) -> torch.device:
        """Where it runs."""
        return self.session.run.forward.model.device

    def finish(self, probes: Sequence[ProbeTokens]) -> Ran:
        """Close the last turn, ask the probes, and give the cache up."""
        session = self.session
        session.close()
        run = session.run
        (answers,) = answer_probes(run.forward, run.branches, probes).values()
        work = run.branches[0].policy.work(sizes_of(run.trajectory), run.forward.shape)
        ran = Ran(session.held, tuple(answers), sum(each.flops for each in work))
        self.release()
        return ran

    def release(self) -> None:
        """Give all tensors up."""
        for lane in self.session.run.lanes():
            lane.release()

    def _thought(self) -> str:
        """The opening tag of a thought, where the template began the last reply with one."""
        run = self.session.run
        reply = run.trajectory.segments[-1]
        return begun_thinking(run.forward.model.tokenizer.decode(reply.ids[: reply.scored[0]]))
