"""What a replay is asked for: given before resumed before default, and what does not go together."""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import Any

import pytest

from kvmill import api
from kvmill.errors import UserError
from kvmill.replay import commands
from kvmill.replay.wanted import Wanted

NAMES = {field.name for field in fields(Wanted)}


def test_the_command_and_the_function_take_these_settings() -> None:
    function = set(inspect.signature(api.run_replay).parameters) - {"progress", "store"}
    command = set(inspect.signature(commands.replay).parameters) - {"as_json", "store"}
    assert function == NAMES
    assert command - {"policy"} == NAMES - {"policies"}


def test_a_new_run_has_defaults_and_a_resumed_one_what_it_had() -> None:
    new = Wanted(seed=3).filled({})
    assert (new.seed, new.traces, new.mode, new.probes, new.equal_by, new.threads) == (
        3, "last", "teacher", "auto", None, None,
    )  # fmt: skip
    had = {"seed": 5, "mode": "stepwise", "dtype": "float32", "actions_given": "hermes", "actions": {"a": "qwen-xml"}}
    resumed = Wanted(resume="replay-1", dtype="bfloat16").filled(had)
    assert (resumed.seed, resumed.mode, resumed.dtype, resumed.actions) == (5, "stepwise", "bfloat16", "hermes")
    assert resumed.probes == "recorded", "of a run from before probes were made"


def test_a_false_or_zero_that_is_given_is_given() -> None:
    had = {"seed": 5, "explain": True, "temperature": 0.7}
    found = Wanted(seed=0, explain=False, temperature=0.0).filled(had)
    assert (found.seed, found.explain, found.temperature) == (0, False, 0.0)


def test_an_equal_size_compares_peaks_and_is_spelled_in_one_way() -> None:
    found = Wanted(equal_size="te(keep=0.2, delay=1)").filled({})
    assert (found.equal_size, found.equal_by) == ("te(delay=1,keep=0.2)", "peak")
    assert Wanted(equal_size="te(keep=0.2)", equal_by="mean").filled({}).equal_by == "mean"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"mode": "free"}, "unknown mode 'free'"),
        ({"measure": "speed"}, "unknown measure 'speed'"),
        ({"equal_by": "mean"}, "give both"),
        ({"equal_size": "full", "sweep": ["te(keep=0.1|0.2)"]}, "not be those named"),
        ({"explain": True, "measure": "latency"}, "--explain is about the tokens"),
        ({"explain": True, "mode": "closed"}, "--explain is about recorded"),
        ({"mode": "closed", "equal_size": "full"}, "closed-loop runs go other ways"),
        ({"temperature": 0.5}, "--temperature: only for --mode stepwise or closed"),
        ({"mode": "stepwise", "seed_turns": 2}, "--seed-turns: only for --mode closed"),
        ({"mode": "closed", "long": "cut"}, "--long is about recorded turns"),
        ({"mode": "closed", "measure": "both"}, "latency comes from --mode teacher"),
    ],
)
def test_what_does_not_go_together_is_said(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        checked(given)


def checked(given: dict[str, Any]) -> None:
    wanted = Wanted(**given)
    wanted.require_together(wanted.filled({}))


def test_a_flag_of_another_mode_is_refused_on_a_resumed_run_too() -> None:
    wanted = Wanted(resume="replay-1", seed_turns=2)
    with pytest.raises(UserError, match="only for --mode closed"):
        wanted.require_together(wanted.filled({"mode": "teacher"}))
    wanted.require_together(wanted.filled({"mode": "closed"}))
