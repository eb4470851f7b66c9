"""Policies as text: whatever is printed parses to an equal policy, and errors list what is known."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvmill.errors import UserError
from kvmill.replay.policies.options import in_order, split_spec
from kvmill.replay.policies.registry import POLICIES, parse_policy

RATIO = st.decimals(0, 1, places=6, allow_nan=False).map(lambda d: format(d, "f"))
COUNT = st.integers(1, 10**6).map(str)
TRIGGER = st.one_of(
    st.just("turn"),
    COUNT.map(lambda n: f"tokens:{n}"),
    st.decimals(1, 9, places=3).map(lambda d: f"threshold:{d:f}"),
)
OPTIONS = {
    "full": {},
    "truncate": {"keep": RATIO, "prefix": st.sampled_from(["keep", "drop"])},
    "sink_window": {"budget": COUNT, "trigger": TRIGGER, "renumber": st.sampled_from(["true", "false"])},
    "random": {"keep": RATIO, "protect": st.sampled_from(["structure", "none"]), "trigger": TRIGGER},
    "attention": {
        "keep": RATIO,
        "trigger": TRIGGER,
        "decay": RATIO,
        "locality": st.sampled_from(["none", "distance", "normalised"]),
        "distance": st.just("16"),  # another one counts only with locality=distance
    },
    "te": {
        "proxy": st.permutations(["assistant", "boundary", "tool"]).flatmap(
            lambda p: st.integers(1, 3).map(lambda n: "+".join(p[:n]))
        ),
        "delay": st.integers(1, 9).map(str),
        "keep": RATIO,
        "keep_tool": RATIO,
        "keep_user": RATIO,
        "reduction": st.sampled_from(["rms", "mean", "max"]),
    },
}


@st.composite
def specs(draw: st.DrawFn) -> str:
    name = draw(st.sampled_from(sorted(OPTIONS)))
    chosen = draw(st.fixed_dictionaries({}, optional=OPTIONS[name]))
    pairs = draw(st.permutations([f"{k}={v}" for k, v in chosen.items()]))
    space = draw(st.sampled_from(["", " "]))
    return f"{space}{name}({space}{f',{space}'.join(pairs)}{space})"


@given(specs())
def test_printing_and_parsing_are_inverse(spec: str):
    policy = parse_policy(spec)
    again = parse_policy(str(policy))
    assert again == policy
    assert hash(again) == hash(policy)
    assert str(again) == str(policy)
    assert " " not in str(policy)


@given(specs())
def test_exactly_the_given_options_are_printed_in_class_order(spec: str):
    policy = parse_policy(spec)
    _, printed = split_spec(str(policy))
    assert set(printed) == set(split_spec(spec)[1])
    order = [f.name for f in in_order(type(policy)) if f.name in printed]
    assert list(printed) == order


def test_the_texts_of_the_design():
    assert str(parse_policy("te( keep = 0.2, delay=1 ,proxy=assistant )")) == "te(proxy=assistant,delay=1,keep=0.2)"
    assert str(parse_policy("truncate()")) == str(parse_policy(" truncate ")) == "truncate"
    assert str(parse_policy("random(keep=0.200)")) == "random(keep=0.2)"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("te", "te(proxy=assistant,delay=1,keep=0.20)"),
        ("attention(trigger=threshold:1.10)", "attention"),
        ("random(trigger=tokens:050)", "random(trigger=tokens:50)"),
        ("te(proxy=boundary)", "te(proxy=boundary,delay=0)"),
        ("truncate(keep=.2)", "truncate(keep=0.2)"),
    ],
)
def test_policies_are_compared_parsed(one: str, other: str):
    assert parse_policy(one) == parse_policy(other)


def test_ratios_are_exact_decimals():
    policy = parse_policy("te(keep=0.1)")
    assert policy.keep == Decimal("0.1")  # type: ignore[attr-defined]
    assert policy.keep * 10 == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("trunkate", "unknown policy 'trunkate'. Did you mean 'truncate'? Known: a"),
        ("te(kep=0.2)", "unknown option 'kep' in policy 'te(kep=0.2)'. Did you mean 'keep'? Known: delay, granularity"),
        ("full(keep=0.2)", "unknown option 'keep' in policy 'full(keep=0.2)'. Known: none"),
        ("te(keep=1.5)", "keep=1.5 must be a number between 0 and 1"),
        ("te(keep=nan)", "keep=nan must be a number between 0 and 1"),
        ("te(keep=-0.1)", "must be a number between 0 and 1"),
        ("te(keep=1e-1)", "must be a number between 0 and 1"),
        ("te(keep=0.12345678901234567890)", "at most 15 decimals"),
        ("te(delay=1.0)", "delay=1.0 must be a whole number of at least 0"),
        ("te(delay=-1)", "must be a whole number of at least 0"),
        ("te(proxy=assistant+assistant)", "must be one or more of assistant, boundary, repeat, tool, joined by +"),
        ("te(reduction=median)", "must be one of rms, mean, max"),
        ("random(budget=0)", "must be a whole number of at least 1"),
        ("random(trigger=threshold:0.9)", "must be turn, threshold:X"),
        ("random(trigger=tokens:0)", "must be turn, threshold:X"),
        ("random(trigger=turn:)", "must be turn, threshold:X"),
        ("te(keep)", "'keep' is not option=value"),
        ("te(keep=)", "'keep=' is not option=value"),
        ("te(keep=0.1,keep=0.2)", "option 'keep' is given twice"),
        ("te(keep=0.2", "write it as name or name(option=value,…)"),
        ("", "write it as name"),
        ("te(proxy=assistant,delay=0)", "delay=0 has no later turn"),
        ("random(keep=0.2,budget=100)", "give keep or budget, not both"),
        ("truncate(trigger=tokens:50)", "trigger=turn is the only choice"),
    ],
)
def test_errors_say_what_and_what_is_known(spec: str, says: str):
    with pytest.raises(UserError) as caught:
        parse_policy(spec)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_every_policy_can_be_written_without_options():
    for name, cls in POLICIES.items():
        assert parse_policy(name) == cls()
        assert str(cls()) == name


@pytest.mark.parametrize(
    "text",
    ["attention(distance=5)", "hybrid(base=5)", "sink_window(sinks=8)", "expected_attention(vnorm=false,epsilon=0.1)"],
)
def test_an_option_that_would_change_nothing_is_refused(text: str) -> None:
    with pytest.raises(UserError, match=r"counts? only with"):
        parse_policy(text)


@pytest.mark.parametrize(
    ("text", "ratio"),
    [
        ("te", "0.2"),
        ("attention(keep=0.30)", "0.3"),
        ("attention(budget=40)", None),
        ("hybrid(window=30,pool=20)", None),
        ("hybrid(window=30)", "0.2"),
        ("adaptive(loss=0.1)", None),
        ("adaptive(budget=60)", None),
        ("full", None),
        ("drop_tool_outputs", None),
    ],
)
def test_a_keep_ratio_is_shown_only_where_it_is_in_force(text: str, ratio: str | None) -> None:
    assert parse_policy(text).ratio == (None if ratio is None else Decimal(ratio))
