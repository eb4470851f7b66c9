"""Sessions on tiny models, and the same messages under the engine's own replay."""

from __future__ import annotations

from dataclasses import replace

import torch
from chatter import CHATML, Chatter
from families import family_model
from stepping import walk
from tiny import tiny_model

from kvmill.replay.forward import Forward
from kvmill.replay.lockstep import Alone, Lockstep
from kvmill.replay.model import LoadedModel
from kvmill.replay.policies.registry import parse_policy
from kvmill.replay.session import Session
from kvmill.traces.tokens import TokenTrajectory


def chatty(template: str = CHATML, seed: int = 0) -> LoadedModel:
    """The tiny model with a tokenizer that can chat."""
    return replace(tiny_model(seed=seed), tokenizer=Chatter(template))  # type: ignore[arg-type]


def chatting(name: str) -> LoadedModel:
    """A model of a family (`tiny` is the tiny Llama) that can chat."""
    return chatty() if name == "tiny" else replace(family_model(name), tokenizer=Chatter())  # type: ignore[arg-type]


def replayed(run: Session, model: LoadedModel, policy: str, text: TokenTrajectory) -> Lockstep:
    """The same under the engine, with the same draws."""
    text = replace(text, id="session")
    return walk(Alone(Forward(model), text, [parse_policy(policy)], 0, room=model.max_positions))


def cache_of(step: Lockstep) -> list[torch.Tensor]:
    cache = step.branches[0].lane.cache
    found = [[*cache.view(layer), cache.bias(layer)] for layer in range(cache.shape.layers)]
    return [part.clone() for layer in found for part in layer if part is not None]


def same_rows(run: Session, step: Lockstep, within: float = 0.0) -> None:
    mine, theirs = run._run.branches[0], step.branches[0]
    assert torch.equal(mine.index, theirs.index)
    assert mine.lane.position == theirs.lane.position
    for a, b in zip(cache_of(run._run), cache_of(step), strict=True):
        torch.testing.assert_close(a, b, atol=within, rtol=0)
