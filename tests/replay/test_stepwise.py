"""Actions generated in lockstep are those of single runs and of the library, and leave no trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from chatter import CHATML, PLAIN, Chatter
from families import FAMILIES, family_model
from sessions import chatty
from tiny import probe, tiny_model, trajectory

from kvmill.errors import UserError
from kvmill.replay import stepwise
from kvmill.replay.decoding import Ending
from kvmill.replay.engine import BranchRun, replay
from kvmill.replay.forward import Forward
from kvmill.replay.model import LoadedModel
from kvmill.replay.policies.attention_state import AttentionState
from kvmill.replay.policies.registry import parse_policies, parse_policy
from kvmill.replay.sampling import Sampler
from kvmill.replay.segments import turns_of
from kvmill.replay.stepwise import Asking
from kvmill.traces.tokens import tokenize
from kvmill.traces.trajectory import Message, Trajectory, Turn

# A fifth of the ids end an action, so that lanes drop out one by one.
ASKING = Asking(Ending(frozenset(range(20)), ""), str, most=9)
SOME = [
    "te(keep=0.2)",
    "te(proxy=repeat,keep=0.2)",
    "attention(keep=0.2)",
    "sink_window(keep=0.3)",
    "truncate(keep=0.3)",
    "random(keep=0.2)",
]
every_model = pytest.mark.parametrize("name", ["tiny", *sorted(FAMILIES)])


def model_of(name: str) -> LoadedModel:
    return tiny_model() if name == "tiny" else family_model(name)


def said(run: BranchRun) -> list[tuple[int, ...] | None]:
    return [record.said for record in run.turns]


def asked(
    model: LoadedModel, policies: Sequence[str], asking: Asking | None = ASKING, seed: int = 3
) -> list[BranchRun]:
    chosen = parse_policies(list(policies))
    return replay(Forward(model), trajectory(turns=4, long_tool=40), chosen, [probe()], seed, asking)


@pytest.mark.parametrize(
    ("name", "temperature"), [("tiny", 0.0), ("tiny", 1.5), *((name, 0.0) for name in sorted(FAMILIES))]
)
def test_lanes_in_lockstep_say_what_they_say_alone(name: str, temperature: float) -> None:
    model, asking = model_of(name), replace(ASKING, temperature=temperature)
    together = asked(model, SOME, asking)
    assert [run.error for run in together] == [None] * len(together)
    text = trajectory(turns=4, long_tool=40)
    for run in together:
        (alone,) = replay(Forward(model), text, [run.policy], [], 3, asking)
        assert said(alone) == said(run), str(run.policy)
    lengths = [len(reply) for run in together for reply in said(run)[1:] if reply is not None]
    assert len(lengths) == len(together) * 3
    assert min(lengths) < max(lengths)  # some ended before others


@every_model
def test_what_is_generated_leaves_no_trace(name: str) -> None:
    """Bit for bit: quality, rows, bytes, probes and kept tokens are those of a teacher-forced replay."""
    model = model_of(name)
    with_actions, without = asked(model, SOME), asked(model, SOME, None)
    for one, other in zip(with_actions, without, strict=True):
        assert [replace(record, said=None) for record in one.turns] == other.turns
        assert one.probes == other.probes
        assert one.process_bytes == other.process_bytes
        assert torch.equal(one.kept, other.kept)  # type: ignore[arg-type]
        assert said(other) == [None] * 4
        assert said(one)[0] is None  # nothing is compacted before the first turn


@every_model
@torch.inference_mode()
def test_full_says_what_the_library_says_after_the_recorded_text(name: str) -> None:
    model, text = model_of(name), trajectory(turns=3)
    (run,) = replay(Forward(model), text, parse_policies([]), [], 0, ASKING)
    model.module.set_attn_implementation("eager")
    before: list[int] = []
    for segment in (segment for turn in turns_of(text) for segment in turn):
        if segment.kind == "assistant" and segment.turn:
            ids, want = [*before, *segment.ids[: segment.scored[0]]], list[int]()
            while len(want) < ASKING.most:
                token = int(model.module(torch.tensor([[*ids, *want]])).logits[0, -1].argmax())
                if token in ASKING.ending.ids:
                    break
                want.append(token)
            assert run.turns[segment.turn].said == tuple(want)
        before += segment.ids


def test_a_policys_state_never_sees_what_is_generated(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    for name in ("begin", "observe", "fed", "look", "close"):
        right = getattr(AttentionState, name)

        def counted(self: AttentionState, *args: object, _name: str = name, _right: object = right) -> object:
            calls.append(_name)
            return _right(self, *args)  # type: ignore[operator]

        monkeypatch.setattr(AttentionState, name, counted)
    asked(tiny_model(), ["attention(keep=0.2)"], None)
    teacher, calls[:] = list(calls), []
    asked(tiny_model(), ["attention(keep=0.2)"])
    assert calls == teacher


def test_draws_follow_from_the_seed_and_the_turn_alone() -> None:
    warm = replace(ASKING, temperature=2.0, most=20)
    one, again, other = (asked(tiny_model(), ["te(keep=0.2)"], warm, seed) for seed in (3, 3, 4))
    assert said(one[1]) == said(again[1]) != said(other[1])
    assert len(set(said(one[0])[1:])) == 3
    # `te` with delay 1 still holds everything at turn 1: it has not diverged and says the same as `full`.
    assert said(one[0])[1] == said(one[1])[1]


def test_every_turn_draws_anew_and_every_policy_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []

    def noting(temperature: float, top_p: float, seed: int) -> Sampler:
        drawn.append(seed)
        return Sampler(temperature, top_p, seed)

    monkeypatch.setattr(stepwise, "Sampler", noting)
    for seed in (3, 4):
        asked(tiny_model(), ["sink_window(keep=0.3)"], replace(ASKING, temperature=1.0, most=2), seed)
    assert len(set(drawn)) == 2 * 3
    # At turn 1 the two policies may share a lane, which draws once.
    assert {drawn.count(seed) for seed in drawn[2:6]} == {2}


def talk(template: str) -> tuple[LoadedModel, Trajectory]:
    turns = tuple(
        Turn(Message("assistant", f"Look {n}"), (Message("tool", f"Room {n} of 17, Ann Lee has it."),))
        for n in range(3)
    )
    return chatty(template), Trajectory("t", "s", "f", (Message("user", "Where is the key?"),), turns)


@pytest.mark.parametrize("template", [CHATML, PLAIN])
def test_an_action_ends_where_the_template_ends_a_message(template: str) -> None:
    model, run = talk(template)
    asking = Asking.of(model, 30, 0.0)
    tokenizer = Chatter(template)
    assert asking.ending == Ending(frozenset({96}), "") if template is CHATML else Ending(frozenset(), "\n\n")
    found = replay(Forward(model), tokenize(run, tokenizer), [parse_policy("full")], [], 0, asking)[0]
    for reply in said(found)[1:]:
        assert reply
        assert len(reply) <= 30
        assert 96 not in reply
        assert "\n\n" not in asking.text(reply) or template is CHATML


def test_text_that_closes_a_message_is_no_part_of_it() -> None:
    asking = Asking(Ending(frozenset(), "\n\n"), Chatter().decode)
    assert asking.text(Chatter().encode("Look\n\n", False)) == "Look"
    assert Asking(Ending(frozenset({96}), ""), Chatter().decode).text(Chatter().encode("Look\n\n", False)) == "Look\n\n"


@pytest.mark.parametrize(("most", "temperature"), [(0, 0.0), (5, -1.0), (5, float("nan"))])
def test_settings_that_make_no_sense_are_refused(most: int, temperature: float) -> None:
    with pytest.raises(UserError, match="must be"):
        Asking.of(chatty(), most, temperature)
