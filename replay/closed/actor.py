"""One policy's closed-loop run in progress; all of a trajectory go on side by side, a reply of each per round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from ..decoding import Asked, Draft, speak_together
from ..forward import Forward
from ..lockstep import reason
from ..memory import give_back
from ..policies.base import Policy
from .agent import Agent, Ran
from .episode import Episode


@dataclass(eq=False)
class Actor:
    """`skipped` or `error` say why there is no run, or why it broke off; `ran` is there at its end."""

    policy: Policy
    agent: Agent | None = None
    episode: Episode | None = None
    asked: Asked | None = None
    ran: Ran | None = None
    skipped: str | None = None
    error: str | None = None

    @property
    def going(self) -> bool:
        """Whether its model is to say more."""
        return self.error is None and self.episode is not None and self.episode.end is None

    @property
    def run(self) -> tuple[Agent, Episode]:
        """Agent and episode of a run that has begun."""
        assert self.agent is not None
        assert self.episode is not None
        return self.agent, self.episode

    def ask(self) -> None:
        """Close the turn before, and get ready to speak; the run ends here if there is no room to."""
        agent, episode = self.run
        self.asked = agent.ask()
        if self.asked is None:
            episode.go_on(agent, None)

    def go_on(self, asked: Asked, draft: Draft | None = None) -> None:
        """Say a reply (`draft` if it was generated already) and take what it brings."""
        agent, episode = self.run
        episode.go_on(agent, agent.take(asked, draft or agent.session.draft(asked)))

    def guarded(self, action: Callable[[], None]) -> None:
        """What one policy raises costs its own cell only; the row says why."""
        try:
            action()
        except Exception as error:
            self.error = reason(error)
            if self.agent is not None:
                self.agent.release()
                give_back(self.agent.device)


def one_round(forward: Forward, going: Sequence[Actor]) -> None:
    """One reply of each. They decode together, but for those whose policies look at the cache while a reply grows."""
    for actor in going:
        actor.asked = None
        actor.guarded(actor.ask)
    asked = {actor: actor.asked for actor in going if actor.asked is not None}
    beside = [actor for actor, each in asked.items() if not actor.run[0].speaks_alone(each)]
    drafts = speak_together(forward, [actor.run[0].lane for actor in beside], [asked[actor] for actor in beside])
    said = dict(zip(beside, drafts, strict=True))
    for actor, each in asked.items():
        actor.guarded(partial(actor.go_on, each, said.get(actor)))
