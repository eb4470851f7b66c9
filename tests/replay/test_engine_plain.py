"""The whole engine against a second replay written from the definitions (`plain`): kept tokens, figures, probes."""

from __future__ import annotations

import pytest
import torch
from plain import PlainLlama, PlainRun
from tiny import probe, tiny_model, trajectory

from kvmill.replay.engine import replay
from kvmill.replay.forward import Forward
from kvmill.replay.lockstep import Lockstep
from kvmill.replay.policies.full import Full
from kvmill.replay.policies.registry import parse_policies
from kvmill.replay.segments import turns_of

RULES = {
    "te(proxy=assistant,delay=1,keep=0.25)": lambda run, turn: run.evict(turn, 1, 0.25, ["assistant"]),
    "te(proxy=assistant,delay=3,keep=0.25)": lambda run, turn: run.evict(turn, 3, 0.25, ["assistant"]),
    "te(proxy=boundary,keep=0.25)": lambda run, turn: run.evict(turn, 0, 0.25, ["boundary"]),
    "te(proxy=boundary+assistant,delay=2,keep=0.5)": lambda run, turn: run.evict(
        turn, 2, 0.5, ["boundary", "assistant"]
    ),
    "sink_window(keep=0.25)": lambda run, turn: run.window(0.25),
}


def test_every_figure_is_that_of_a_second_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long segments are fed in pieces here and whole there; what differs is rounding."""
    model, text, asked = tiny_model(), trajectory(turns=6), probe()
    forward, policies = Forward(model), parse_policies(["full", *RULES])
    kept: dict[tuple[str, int], list[list[list[int]]]] = {}
    settle = Lockstep.settle

    def noted(self: Lockstep, turn: int) -> object:
        kept.update({(str(branch.policy), turn): branch.index.tolist() for branch in self.branches})
        return settle(self, turn)

    monkeypatch.setattr(Lockstep, "settle", noted)
    runs = {str(run.policy): run for run in replay(forward, text, policies, [asked])}
    plain = PlainLlama(model.module)
    whole: dict[int, torch.Tensor] = {}
    for name in [str(Full()), *RULES]:
        second, measured = PlainRun(plain), runs[name]
        assert measured.error is None
        for turn, segments in enumerate(turns_of(text)):
            for segment in segments:
                found = second.feed(segment)
                if segment.kind != "assistant":
                    continue
                first, last = segment.scored
                logp, said = found[first - 1 : last - 1], torch.tensor(segment.ids[first:last])
                reference = whole.setdefault(turn, logp)
                quality = measured.turns[turn].quality
                assert quality.tokens == last - first
                assert quality.nll == pytest.approx(-float(logp.gather(1, said[:, None]).sum()), rel=1e-4)
                divergence = float((reference.exp() * (reference - logp)).sum())
                assert quality.kl == pytest.approx(divergence, rel=1e-3, abs=1e-5)
                assert quality.agreed == int((reference.argmax(-1) == logp.argmax(-1)).sum())
            if name in RULES:
                RULES[name](second, turn)
            here = [[held.tokens for held in layer] for layer in second.cache]
            assert kept[name, turn] == here, f"{name}, turn {turn}"
        assert max(record.counters.rows_peak for record in measured.turns) == second.peak
        assert measured.probes[0].likelihoods == pytest.approx(second.answers(asked), rel=1e-4)
    assert runs["sink_window(keep=0.25)"].turns[-1].quality.kl > 0.1, "the policies make a difference"
