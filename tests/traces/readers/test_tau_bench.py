"""tau-bench runs keep every word, the reward and the gold actions; users speak between turns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvmill.traces import checks, formats
from kvmill.traces.readers.tau_bench import read
from kvmill.traces.reading import Reject

RUN: dict[str, Any] = {
    "task_id": 3,
    "trial": 1,
    "reward": 1.0,
    "info": {"task": {"actions": [{"name": "cancel", "kwargs": {"id": "A1"}}], "instruction": "secret"}},
    "traj": [
        {"role": "system", "content": "# Retail agent policy\n…"},
        {"role": "user", "content": "Cancel it."},
        {"role": "assistant", "content": "Sure?"},
        {"role": "user", "content": "Yes."},
        {"role": "assistant", "content": "Done."},
    ],
}


def test_reward_gold_actions_family_and_what_the_user_said() -> None:
    run = read(RUN)
    assert run.family == "retail"
    assert run.label is not None
    assert (run.label.scorer, run.label.value) == ("reward", 1.0)
    assert [(c.name, c.arguments) for c in run.label.gold_actions] == [("cancel", '{"id": "A1"}')]
    assert run.meta == {"task_id": 3, "trial": 1}
    assert [m.content for m in run.turns[1].user] == ["Yes."]
    assert "secret" not in str(run), "the hidden instruction of the simulated user is no part of the run"


def test_a_run_without_reward_has_no_label() -> None:
    run = read({**RUN, "reward": None})
    assert run.label is None
    assert "no_reward" in run.losses
    with pytest.raises(Reject, match="no traj list"):
        read({**RUN, "traj": None})


def test_a_run_that_failed_before_its_first_word_is_refused_with_the_reason() -> None:
    failed = {**RUN, "traj": [], "info": {"error": "rate limit", "traceback": "…"}}
    assert formats.detect([failed], "x").name == "tau-bench"
    with pytest.raises(Reject, match="nothing was said: the run ended in an error"):
        read(failed)


@pytest.mark.parametrize("reward", ["1.0", True, 10**400])
def test_a_reward_that_is_no_number_is_none(reward: Any) -> None:
    assert read({**RUN, "reward": reward}).label is None


def test_two_hundred_real_runs_keep_every_message_in_order(shared_data: Path) -> None:
    files = sorted((shared_data / "traces/tau-bench").glob("*.json"))
    assert files
    calls = 0
    for path in files:
        raws = json.loads(path.read_text())
        assert formats.detect(raws[:20], "x").name == "tau-bench"
        for raw in raws:
            run = read(raw)
            said = [m.get("content") or "" for m in raw["traj"]]
            dropped = 1 if "trailing_user_dropped" in run.losses else 0
            assert [m.content for m in run.messages()] == said[: len(said) - dropped]
            recorded = [c["function"]["arguments"] for m in raw["traj"] for c in m.get("tool_calls") or []]
            kept = [c.arguments for turn in run.turns for c in turn.assistant.tool_calls]
            assert kept == recorded
            calls += len(kept)
            assert run.label is not None
            assert run.label.value == raw["reward"]
            assert run.family == "airline"
            # Some tasks ask for no action, and some rewards were won without the gold ones (bug 15).
            found = {finding.code for finding in checks.trajectory_findings(run)}
            assert found <= {"reward_without_action", "reward_without_gold_action"}
    assert calls > 500
