"""A call that raises, for whatever reason, leaves the session as it was."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from sessions import cache_of, chatting, chatty

from kvmill.errors import UserError
from kvmill.replay.session import Session, session


def state(run: Session) -> tuple:
    branch = run._run.branches[0]
    fixed = branch.lane.fixed
    held = [t for pair in fixed.sliding.values() for t in pair] + list(fixed.linear.values())
    return (
        run.messages,
        run.ids,
        run.rows,
        run.kv_bytes,
        run.losses,
        run.ended,
        branch.lane.position,
        branch.lane.riders,
        branch.aux_bytes,
        replace(branch.counters),
        [*(t.tolist() for t in (*cache_of(run._run), *held, branch.index))],
    )


def interrupted(run: Session, at: int, action: Callable[[], object]) -> bool:
    """Run `action` with a Ctrl-C inside its pass number `at`; whether it came that far."""
    feed, calls = run._run.forward.feed, itertools.count()

    def failing(*args, **kwargs):
        if next(calls) != at:
            return feed(*args, **kwargs)
        lanes = args[0]
        lanes[0].cache.append(0, *(torch.ones(2, 1, lanes[0].cache.shape.head_dim) for _ in range(2)))
        raise KeyboardInterrupt

    run._run.forward.feed = failing  # type: ignore[method-assign]
    try:
        action()
    except KeyboardInterrupt:
        return True
    finally:
        run._run.forward.feed = feed  # type: ignore[method-assign]
    return False


@pytest.mark.parametrize("name", ["tiny", "gemma3", "qwen3_5"])
@pytest.mark.parametrize("policy", ["te(proxy=repeat,keep=0.3)", "attention(keep=0.3,trigger=tokens:9)", "truncate"])
def test_an_interrupted_call_leaves_the_session_as_it_was(name: str, policy: str) -> None:
    def fresh() -> Session:
        run = session(chatting(name), policy)
        run.append("user", "Where is the key?")
        run.generate(max_tokens=10, temperature=1.0)
        run.append("tool", "In room 12.")
        return run

    def go_on(run: Session) -> None:
        run.generate(max_tokens=12, temperature=1.0)
        run.append("tool", "Yes.")
        run.append("user", "Ok?")

    want, run = fresh(), fresh()
    go_on(want)
    before = state(run)
    closed = None
    for at in range(0, 40, 3):
        if not interrupted(run, at, lambda: run.generate(max_tokens=12, temperature=1.0)):
            break
        if state(run) != before and closed is None:
            closed = state(run)  # the turn that was due is closed: once, and nothing else
            assert run.messages == before[0]
        assert state(run) == (closed or before)
    assert at > 12
    run = fresh()
    assert interrupted(run, 0, lambda: run.append("user", "Ok?"))
    assert state(run) == before
    go_on(run)
    assert state(run) == state(want)
    assert [buffer.owners for buffer in run._run.branches[0].lane.cache.buffers()] == [
        1
    ] * run._run.forward.shape.layers


def test_nothing_is_left_behind_by_a_message_that_is_refused() -> None:
    run = session(replace(chatty(), max_positions=120), "te(keep=0.3)")
    with pytest.raises(UserError, match="nothing to answer yet"):
        run.generate()
    with pytest.raises(UserError, match="a tool message answers"):
        run.append("tool", "yes")
    with pytest.raises(UserError, match=r"unknown role 'usr'.*Did you mean 'user'"):
        run.append("usr", "yes")
    with pytest.raises(UserError, match="tool_calls belong to an assistant"):
        run.append("user", "yes", tool_calls=[{"function": {"name": "f"}}])
    with pytest.raises(UserError, match="would have"):
        run.append("user", "long" * 50)
    assert run.messages == ()
    run.append("user", "Hi")
    for options in ({"max_tokens": 0}, {"temperature": -1.0}, {"top_p": 0.0}, {"stop": [""]}):
        with pytest.raises(UserError):
            run.generate(**options)
    run.append("assistant", "Hello", tool_calls=[{"function": {"name": "f", "arguments": {}}}])
    with pytest.raises(UserError, match="no function name"):
        run.append("assistant", "Hello", tool_calls=[{"function": {}}])
    run.close()
    with pytest.raises(UserError, match="a tool message answers"):
        run.append("tool", "too late")
    assert [message.role for message in run.messages] == ["user", "assistant"]


def test_a_message_whose_end_is_protected_cannot_be_looked_at_while_it_grows() -> None:
    run = session(chatty(), "attention(protect=structure+last:4)")
    run.append("user", "Hi")
    with pytest.raises(UserError, match="protects the last tokens of a message"):
        run.generate()
    run.append("assistant", "A recorded one is fine.")
