"""A session is replay, one message at a time: the same rows, the same keys; and what it generates is the model's."""

from __future__ import annotations

import itertools
import re
import textwrap
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sessions import chatting, chatty, replayed, same_rows
from tiny import save_tiny

from kvmill.errors import UserError
from kvmill.replay.engine import replay
from kvmill.replay.forward import Forward
from kvmill.replay.model import LoadedModel, load_model
from kvmill.replay.policies.registry import POLICIES, parse_policies
from kvmill.replay.session import Session, session
from kvmill.replay.weights import ALIASES, cached_file
from kvmill.traces import samples
from kvmill.traces.record import tool_call
from kvmill.traces.tokens import tokenize
from kvmill.traces.trajectory import Message, Trajectory, Turn

SPELLINGS = [
    *sorted(POLICIES),
    "te(proxy=boundary,keep=0.3)",
    "te(proxy=repeat,keep=0.3)",
    "am(proxy=assistant+boundary,delay=2,keep=0.3)",
    "attention(keep=0.3,trigger=tokens:30)",
    "sink_window(keep=0.3,renumber=true)",
    "drop_tool_outputs(older_than=1,min_tokens=10)",
]


def answer(text: str) -> Message:
    return Message("tool", text, tool_call_id="c1", name="find")


TALK = Trajectory(
    "talk",
    "test",
    "test",
    (Message("system", "You find things."), Message("user", "Where is the key of room 12?")),
    (
        Turn(Message("assistant", "I look.", (tool_call("c1", "find", '{"what": "key"}'),)), (answer("Ann has it."),)),
        Turn(Message("assistant", "And Ann?"), (answer("In room 7, /floor/2."), answer("Since 10:45 <|im_end|>"))),
        Turn(Message("assistant", "Ann is in room 7.")),
        Turn(Message("assistant", "Ben has it."), (answer("Yes."),), (Message("user", "And the other key?"),)),
        Turn(Message("assistant", "Sure."), (), (Message("user", "Sure?"), Message("user", "Really?"))),
    ),
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load_model(str(save_tiny(tmp_path_factory.mktemp("tiny"))), dtype="float32", threads=1)


def told(run: Session, text: Trajectory) -> Session:
    """The whole trajectory appended, message by message."""
    for message in text.messages():
        calls = [{"id": c.id, "function": {"name": c.name, "arguments": c.arguments}} for c in message.tool_calls]
        run.append(
            message.role, message.content, tool_calls=calls, name=message.name, tool_call_id=message.tool_call_id
        )
    run.close()
    return run


@pytest.mark.parametrize("policy", SPELLINGS)
def test_appending_a_recorded_run_is_replaying_it(model: LoadedModel, policy: str) -> None:
    run = told(session(model, policy), TALK)
    text = tokenize(TALK, model.tokenizer)
    assert run._run.trajectory.segments == text.segments
    assert run._run.trajectory.prompts == text.prompts
    assert run.losses == text.losses
    assert list(run.ids) == [token for segment in text.segments for token in segment.ids]
    assert list(run.messages) == TALK.messages()
    same_rows(run, replayed(run, model, policy, text))


def test_a_sample_keeps_what_replay_reports(model: LoadedModel) -> None:
    whole = samples.load()[5]
    text = replace(whole, turns=whole.turns[:3])
    policies = ["te(proxy=assistant,delay=1,keep=0.2)", "attention(keep=0.2)", "sink_window(keep=0.2)"]
    tokens = tokenize(text, model.tokenizer)
    for one in replay(Forward(model), tokens, parse_policies(policies))[1:]:
        run = told(session(model, one.policy), text)
        counts = np.bincount(
            np.concatenate([row for rows in run.kept().values() for row in rows]), minlength=run.tokens
        )
        assert one.kept is not None
        np.testing.assert_allclose(counts / 6, one.kept.numpy(), atol=1e-6)
        assert run.rows == one.turns[-1].kv_rows
        assert run.kv_bytes == one.turns[-1].kv_bytes


@pytest.mark.skipif(not cached_file(ALIASES["smollm2-135m"]).exists(), reason="smollm2-135m is not in the cache")
def test_on_the_real_small_model_too() -> None:
    real = load_model("smollm2-135m", dtype="float32")
    whole = samples.load()[0]
    text = replace(whole, turns=whole.turns[:2])
    policy = "te(proxy=assistant,delay=1,keep=0.2)"
    run = told(session(real, policy), text)
    same_rows(run, replayed(run, real, policy, tokenize(text, real.tokenizer)))
    run.append("user", "Thank you. Say only: done")
    said = run.generate(max_tokens=12)
    assert said
    assert run.ended in ("end", "max_tokens")


def test_kept_is_by_layer_and_head_ascending(model: LoadedModel) -> None:
    run = told(session(model, "te(proxy=assistant,delay=1,keep=0.3)"), TALK)
    kept = run.kept()
    assert sorted(kept) == [0, 1, 2]
    assert all(len(heads) == 2 for heads in kept.values())
    for row in itertools.chain.from_iterable(kept.values()):
        assert len(row) == run.rows
        assert (np.diff(row) > 0).all()
        assert row[-1] < run.tokens
    assert any((a != b).any() for a, b in itertools.pairwise([h[0] for h in kept.values()]))


@pytest.mark.parametrize("name", ["gemma3", "gemma4", "qwen3_5"])
@pytest.mark.parametrize(
    "policy",
    ["te(keep=0.3)", "te(proxy=repeat,keep=0.3)", "attention(keep=0.2)", "attention(trigger=tokens:16)"],
)
def test_layers_that_are_left_alone_go_on_after_a_reply(name: str, policy: str) -> None:
    model = chatting(name)
    run = session(model, policy)
    run.append("user", "Where is the key?")
    for _ in range(3):
        run.generate(max_tokens=25, temperature=1.0)
        run.append("tool", "It is in room 12.")
    run.close()
    step = replayed(run, model, policy, run._run.trajectory)
    same_rows(run, step, within=2e-3)
    mine, theirs = run._run.branches[0].lane.fixed, step.branches[0].lane.fixed
    for key, states in mine.sliding.items():
        torch.testing.assert_close(states, theirs.sliding[key], atol=2e-3, rtol=0)
    for key, state in mine.linear.items():
        torch.testing.assert_close(state, theirs.linear[key], atol=5e-3, rtol=0)


def test_sessions_on_several_models_and_policies_do_not_meet() -> None:
    def talk(runs: list[Session]) -> list[list[str]]:
        for run in runs:
            run.append("user", "Where is the key?")
        return [[run.generate(max_tokens=10) for run in runs] for _ in range(3)]

    def make() -> list[Session]:
        one = chatty()
        return [session(one, "full"), session(one, "te(keep=0.2)"), session(chatty(seed=3), "full")]

    together = talk(make())
    alone = [talk([make()[i]]) for i in range(3)]
    assert together == [[alone[i][turn][0] for i in range(3)] for turn in range(3)]


def test_the_example_of_the_docs_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import kvmill

    example = textwrap.dedent(str(kvmill.session.__doc__).partition("```python\n")[2].partition("```")[0])
    folder = str(save_tiny(tmp_path))
    exec(example.replace("smollm2-135m", folder), {"kvmill": kvmill})
    rows, tokens = map(int, re.findall(r"(\d+) of (\d+) tokens held", capsys.readouterr().out)[0])
    assert 0 < rows < tokens


def test_a_folder_is_a_model_too(tmp_path: Path) -> None:
    import kvmill

    run = kvmill.session(str(save_tiny(tmp_path)), "te(keep=0.5)", dtype="float32", threads=1)
    run.append("user", "Hi")
    assert isinstance(run.generate(max_tokens=3), str)
    with pytest.raises(UserError, match="unknown policy"):
        kvmill.session(str(tmp_path), "tee")
