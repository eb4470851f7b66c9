"""From ticks to policies: every method at every ratio, none twice, nothing that cannot be replayed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from kvmill.dashboard.choices import CHOSEN_METHODS, CHOSEN_RATIOS, METHODS, NAMES, RATIOS, policies_of
from kvmill.errors import UserError
from kvmill.replay.policies.registry import QUICK_POLICIES


def spelled(methods: Sequence[str], ratios: Sequence[str], more: str = "") -> list[str]:
    return [str(policy) for policy in policies_of(methods, ratios, more)]


def test_every_method_at_every_ratio_parses_and_full_leads():
    found = spelled(METHODS, RATIOS)
    assert found[0] == "full"
    assert len(found) == len(set(found))
    assert found.count("drop_tool_outputs") == 1, "it takes no ratio"
    assert len(found) == 2 + (len(METHODS) - 1) * len(RATIOS)


def test_the_defaults_are_those_of_the_quick_demo():
    assert set(spelled(CHOSEN_METHODS, CHOSEN_RATIOS)) == set(QUICK_POLICIES)


def test_the_names_of_what_can_be_ticked_are_short_and_no_two_alike():
    names = list(NAMES.values())
    assert names[:3] == ["te assistant", "te boundary", "am assistant"]
    assert len(set(names)) == len(METHODS)
    assert max(map(len, names)) <= len("expected_attention")


def test_what_is_written_and_ticked_is_run_once():
    assert spelled(["truncate"], ["0.2"], "truncate(keep=0.20)\n full \nrandom") == [
        "full",
        "truncate(keep=0.2)",
        "random",
    ]


def test_a_line_that_is_no_policy_is_an_error_that_names_it():
    with pytest.raises(UserError, match="tee"):
        policies_of([], [], "tee(keep=0.2)")
