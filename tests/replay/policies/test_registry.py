"""The table of policies: what the demo runs, what `kvmill policies` says, and `full` first."""

from __future__ import annotations

import pytest

from kvmill.errors import UserError
from kvmill.replay.policies.base import Policy
from kvmill.replay.policies.registry import (
    DEMO_POLICIES,
    HEADLINE_POLICY,
    POLICIES,
    QUICK_POLICIES,
    describe,
    parse_policies,
    parse_policy,
)


def test_names_are_those_of_the_classes_and_every_class_says_what_it_is():
    for name, cls in POLICIES.items():
        assert cls.name == name
        assert issubclass(cls, Policy)
        assert cls.summary
        assert cls.formula
        assert cls.source
        assert cls.footprint_kind == ("bounded" if name == "adaptive" else "exact")


def test_describe_has_every_option_with_a_default_that_parses():
    for entry in describe():
        assert {"name", "options", "formula", "source", "footprint"} <= set(entry)
        given = {k: o["default"] for k, o in entry["options"].items() if o["default"] is not None}
        assert all(o["doc"] and o["type"] for o in entry["options"].values())
        if "budget" in entry["options"]:
            assert entry["options"]["budget"]["default"] is None
        spec = f"{entry['name']}({','.join(f'{k}={v}' for k, v in given.items())})"
        assert parse_policy(spec) == parse_policy(entry["name"])


def test_the_demo_compares_what_the_design_says():
    demo = parse_policies(DEMO_POLICIES)
    assert [p.name for p in demo] == ["full", "truncate", "sink_window", "random", "attention", "te", "te", "te", "te"]
    assert [str(p.keep) for p in demo if p.name == "te"] == ["0.2", "0.1", "0.2", "0.4"]  # type: ignore[attr-defined]
    headline = parse_policy(HEADLINE_POLICY)
    assert headline in demo
    assert headline in parse_policies(QUICK_POLICIES)
    assert [str(p) for p in demo] == list(DEMO_POLICIES), "they are written as they are printed"


def test_full_is_always_run_and_first():
    assert [str(p) for p in parse_policies(["random", "truncate"])] == ["full", "random", "truncate"]
    assert [str(p) for p in parse_policies(["random", "full"])] == ["full", "random"]
    assert [str(p) for p in parse_policies([])] == ["full"]


def test_the_same_policy_twice_is_refused_however_it_is_written():
    with pytest.raises(UserError, match="given twice"):
        parse_policies(["te", "te(proxy=assistant,delay=1,keep=0.20)"])
