"""A workload in TOML: the example of the documentation, laws against their quantiles, and what is refused."""

import inspect
import textwrap

import numpy as np
import pytest

from kvmill.errors import UserError
from kvmill.replay.policies.base import split_turns
from kvmill.simulator import declared
from kvmill.simulator.declared import KNOWN, load_declared
from kvmill.simulator.sources import Fill, find_workload

EXAMPLE = textwrap.dedent(inspect.getdoc(declared).split("\n\n")[1])


@pytest.fixture
def write(tmp_path):
    def written(text, name="load.toml"):
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return written


BASE = """
turns = 3
prefix_tokens = 500
assistant_tokens = 20
tool_tokens = [100, 300]
tool_wait_s = 1.5
"""


def test_the_example_of_the_documentation_is_a_workload(write):
    load = find_workload(write(EXAMPLE))
    assert (load.name, load.rate, load.burstiness, len(load.sessions)) == ("support", 0.5, 2.0, 400)
    assert {spec.shared for spec in load.sessions} == {3072}
    assert {spec.group for spec in load.sessions} == {0, 1}
    assert max(len(spec.waits) for spec in load.sessions) == 150
    assert set(load.declared) <= set(KNOWN)
    assert "0.5 sessions per second, Gamma gaps with a coefficient of variation of 2" in load.assumed
    assert all(key in EXAMPLE for key in KNOWN), "every key is shown"


def test_constants_and_lists(write):
    load = load_declared(write(BASE + "sessions = 200\nuser_tokens = 30"), 0)
    turns = [split_turns(spec.segments) for spec in load.sessions]
    assert {len(own) for own in turns} == {3}
    assert {turn.assistant.tokens for own in turns for turn in own} == {20}
    tools = [turn.tool.tokens for own in turns for turn in own if turn.tool]
    assert set(tools) == {100, 300}
    assert np.mean(tools) == pytest.approx(200, rel=0.1)
    assert {sum(s.tokens for s in own[1].before) for own in turns} == {30}
    assert {spec.waits for spec in load.sessions} == {(1.5, 1.5, 0.0)}
    assert load.kind == "recorded", "neither agents nor a rate: a flag must say it"


def test_log_normal_laws_have_their_quantiles(write):
    text = BASE.replace("turns = 3", "turns = {p50 = 10, p75 = 20, most = 40}").replace("20\n", "{p50=100, p95=900}\n")
    load = load_declared(write(text + "sessions = 4000"), 0)
    counts = np.array([len(spec.waits) for spec in load.sessions])
    outs = [turn.assistant.tokens for spec in load.sessions for turn in split_turns(spec.segments)]
    assert np.percentile(counts, [50, 75]) == pytest.approx([10, 20], rel=0.06)
    assert counts.max() == 40
    assert np.percentile(outs, [50, 95]) == pytest.approx([100, 900], rel=0.05)


def test_a_seed_gives_the_same_sessions(write):
    path = write(EXAMPLE)
    assert load_declared(path, 1).sessions == load_declared(path, 1).sessions != load_declared(path, 2).sessions


def test_flags_say_what_the_file_leaves_open(write):
    path = write(BASE)
    with pytest.raises(UserError, match=r"lacks arrivals \(give --agents N or --rate"):
        find_workload(path)
    assert find_workload(path, Fill(agents=7)).agents == 7
    assert find_workload(path, Fill(rate=2.0, burstiness=3.0)).burstiness == 3.0
    assert find_workload(write(EXAMPLE), Fill(scale_load=4.0)).rate == 2.0
    with pytest.raises(UserError, match="give --rate SESSIONS_PER_S"):
        find_workload(path, Fill(agents=7, burstiness=3.0))


def test_single_turns_need_no_tools(write):
    load = load_declared(write("turns = 1\nprefix_tokens = [10, 20]\nassistant_tokens = 5"), 0)
    assert {len(spec.segments) for spec in load.sessions} == {2}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("tool_token = 3", "unknown key 'tool_token' in load.toml. Did you mean 'tool_tokens'\\? Known: agents, "),
        ("agents = 0", "agents = 0: a whole number from 1"),
        ("agents = 1\nrate = 1.0", "agents and rate exclude each other"),
        ("rate = -1", "rate = -1: a number from 0"),
        ("burstiness = 0", "--burstiness"),
        ("sessions = 1000000", "sessions = 1000000: a whole number from 1 to 100,000"),
        ("shared_prefix_tokens = 500", "prefix_tokens of 500 is not above shared_prefix_tokens"),
        ("user_tokens = {p50 = 5}", "user_tokens: a log-normal law needs p50 and a larger one of p75"),
        ("user_tokens = {p50 = 5, p90 = 4}", "a log-normal law needs"),
        ("user_tokens = {p50 = 5, p90 = 9, p95 = 10}", "a log-normal law needs"),
        ("user_tokens = {p50 = 5, p91 = 9}", "unknown key 'p91' in load.toml: user_tokens"),
        ("user_tokens = {p50 = 5, p90 = 9, least = 8, most = 7}", "least is above most"),
        ("user_tokens = []", "user_tokens = \\[\\]: a number from 0 to 1e\\+12, a list"),
        ("user_tokens = true", "user_tokens = True: a number from 0"),
        ("user_tokens = [1, -2]", "a number from 0 to 1e\\+12, a list"),
        ("user_tokens = 1e300", "user_tokens = 1e\\+300: a number from 0 to 1e\\+12"),
        ("user_tokens = {p50 = 5, p90 = 1e308}", "p90 = 1e\\+308: a number from 0"),
        ("rate = 5e-324", "sessions per second, from 1e-06 to 1e\\+06"),
        ("name = 5", "load.toml: name = 5: a text in quotes"),
        ("= 3", "not TOML"),
    ],
)
def test_what_cannot_be_is_refused_with_its_place(write, change, says):
    with pytest.raises(UserError, match=says):
        load_declared(write(BASE + change), 0)


def test_what_is_missing_is_named(write, tmp_path):
    with pytest.raises(UserError, match=r"load\.toml: tool_wait_s is missing"):
        load_declared(write(BASE.replace("tool_wait_s", "#")), 0)
    with pytest.raises(UserError, match="No such file"):
        load_declared(tmp_path / "none.toml", 0)


def test_more_turns_than_memory_holds_are_refused_before_they_are_drawn(write):
    with pytest.raises(UserError, match=r"turns in 400 sessions; at most 1,000,000"):
        load_declared(write("turns = 1e9\nprefix_tokens = 10\nassistant_tokens = 5"), 0)
