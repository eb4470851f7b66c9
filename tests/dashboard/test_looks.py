"""Policies keep their names and their looks: short, never two alike, and the same on every page."""

from __future__ import annotations

from math import gcd

from hypothesis import given
from hypothesis import strategies as st

from kvmill.dashboard import looks, theme
from kvmill.dashboard.looks import Looks
from kvmill.replay.policies.registry import DEMO_POLICIES, POLICIES

SPELLED = st.sampled_from(
    [
        *DEMO_POLICIES,
        *POLICIES,
        "te(keep=0.20)",
        "te 0.2",
        "am(proxy=assistant+boundary,delay=1,keep=0.2)",
        "am(proxy=assistant+boundary,delay=1,keep=0.2,protect=structure+sinks:4+last:16)",
        "am(proxy=assistant+boundary,delay=2,keep=0.2)",
        "hybrid(window=512,pool=256)",
        "attention(budget=40)",
        "something(new=1)",
    ]
)


def test_the_demo_is_named_in_few_words():
    assert list(looks.short_names(DEMO_POLICIES).values()) == [
        "full",
        "truncate 0.2",
        "sink_window 0.2",
        "random 0.2",
        "attention 0.2",
        "te boundary 0.2",
        "te assistant 0.1",
        "te assistant 0.2",
        "te assistant 0.4",
    ]


def test_only_what_differs_is_added_to_names_that_would_be_alike():
    names = looks.short_names(["am(delay=1,keep=0.2)", "am(delay=2,keep=0.2)", "te(delay=1,keep=0.2)"])
    assert list(names.values()) == ["am 0.2 delay=1", "am 0.2 delay=2", "te 0.2"]
    assert looks.short_names(["hybrid(window=512,pool=256)"]).popitem()[1] == "hybrid window=512 pool=256"


@given(st.lists(SPELLED, unique=True), st.booleans())
def test_no_two_names_are_alike_with_a_keep_ratio_or_without(policies: list[str], keeps: bool):
    names = looks.short_names(policies, keeps=keeps)
    assert list(names) == policies
    assert len(set(names.values())) == len(policies)
    assert looks.short_names(["te(proxy=tool,keep=0.3)"], keeps=False).popitem()[1] == "te tool"


@given(st.lists(SPELLED, unique=True))
def test_no_two_policies_are_called_or_drawn_alike(policies: list[str]):
    names, marks = looks.short_names(policies), looks.marks(policies)
    assert list(names) == list(marks) == policies
    assert len(set(names.values())) == len(policies)
    assert len({(mark.colour, mark.shape) for mark in marks.values()}) == len(policies)
    assert len({(mark.colour, mark.dash) for mark in marks.values()}) == len(policies)


@given(st.lists(SPELLED, unique=True))
def test_the_demo_looks_the_same_in_every_company(policies: list[str]):
    alone, among = looks.marks(DEMO_POLICIES), looks.marks(policies)
    assert all(among[policy] == alone[policy] for policy in policies if policy in alone)


def test_nine_policies_beside_full_have_nine_colours():
    marks = looks.marks([*DEMO_POLICIES, "merge(keep=0.2)"])
    assert len({mark.colour for mark in marks.values()}) == len(marks) == 10
    assert marks["full"] == looks.Mark(theme.GREY, "circle", (1, 0))
    ones, others = marks["te(proxy=assistant,delay=1,keep=0.4)"], marks["te(proxy=boundary,keep=0.2)"]
    assert not {ones.colour, ones.shape, ones.dash} & {others.colour, others.shape, others.dash}


def test_pairs_come_back_as_late_as_they_can():
    hues = len(theme.HUES)
    assert gcd(hues, len(looks.SHAPES)) == gcd(hues, len(looks.DASHES)) == 1
    assert len(set(looks.SHAPES)) == len(looks.SHAPES)
    assert len(set(looks.DASHES)) == len(looks.DASHES)


def test_channels_speak_of_the_same_names_in_the_order_of_the_page():
    found = Looks.of(["truncate(keep=0.2)", "full"])
    for channel in (found.colour(), found.shape(), found.dash()):
        assert channel.to_dict()["scale"]["domain"] == ["truncate 0.2", "full"]
    assert found.shape().to_dict()["scale"]["range"] == ["triangle-right", "circle"]


def test_keep_ratios_are_those_in_force():
    assert looks.keep_of("te(keep=0.20)") == "0.20"
    assert looks.keep_of("te") == "0.2"
    assert looks.keep_of("full") == looks.keep_of("something") == ""
    assert looks.keep_of("attention(budget=40)") == looks.keep_of("adaptive(loss=0.1)") == ""
