"""Tokens of trajectories without a replay, and the system prompts that they share."""

from kvmill.replay.policies.base import split_turns
from kvmill.simulator.lengths import estimated, segments_of, shared_prompts
from kvmill.traces.trajectory import Message, Trajectory, Turn

SYSTEM, OTHER = Message("system", "s" * 4000), Message("system", "o" * 4000)


def run(name, *prefix, tools=()):
    turns = (Turn(Message("assistant", "a" * 396), (Message("tool", "t" * 796),)), Turn(Message("assistant", "b" * 8)))
    return Trajectory(name, "test", "family", prefix, turns, tools=tools)


def test_four_characters_are_a_token_and_a_message_has_four_more():
    first, last = split_turns(segments_of(run("a", SYSTEM, Message("user", "u" * 80))))
    assert [s.tokens for s in first.segments()] == [1004 + 24, 99 + 4, 199 + 4]
    assert last.assistant.tokens == 2 + 4


def test_measured_contexts_are_split_by_characters():
    trajectory = run("a", SYSTEM)
    segments = segments_of(trajectory, {0: 2620, 1: 2630})
    assert [s.tokens for s in segments] == [2008, 206, 406, 10]
    assert [s.tokens for s in segments_of(trajectory, {0: 2620})] == [s.tokens for s in segments_of(trajectory)]


def test_the_same_system_messages_and_tools_are_shared_and_nothing_else():
    user = Message("user", "u" * 36)
    rows = [
        run("a", SYSTEM, user),
        run("b", SYSTEM, Message("user", "v" * 4000)),
        run("c", OTHER, user),
        run("d", SYSTEM, user, tools=({"name": "look"},)),
        run("e", user),
        run("f", user),
        run("g", SYSTEM, user, tools=({"name": "look"},)),
    ]
    prefixes = [round(estimated(row.prefix)) for row in rows]
    found = shared_prompts(rows, prefixes)
    assert [shared for shared, _ in found] == [1004, 1004, 0, 1004, 0, 0, 1004]
    assert found[0][1] == found[1][1] != found[3][1] == found[6][1]
    assert found[2] == found[4] == (0, 0)


def test_a_group_shares_the_least_that_its_prompt_comes_to():
    """Measured lengths of one text differ a little from trajectory to trajectory: what is shared is one number."""
    rows = [run("a", SYSTEM), run("b", SYSTEM)]
    assert shared_prompts(rows, [900, 1000]) == [(900, 1), (900, 1)]
