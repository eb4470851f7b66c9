"""A run goes on until its recommendation is decided, with the same draws after a break, and is judged accordingly."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from tiny import save_tiny
from typer.testing import CliRunner

import kvmill
from kvmill import cli
from kvmill.console import plain
from kvmill.errors import NoAnswer, UserError
from kvmill.replay import until_decided
from kvmill.replay.noninferior import by_draw
from kvmill.replay.recommend import recommend
from kvmill.replay.report import decided_text, recommendation_text, summary_text
from kvmill.replay.until_decided import Until, outcome, require_decided
from kvmill.traces import samples
from kvmill.traces.rows import trajectory_row
from kvmill.traces.store import Run, Store

SMALL, LARGE = "te(delay=1,keep=0.1)", "te(delay=1,keep=0.4)"
PEAKS = {"full": 900.0, SMALL: 200.0, LARGE: 500.0}
Scores = dict[str, Any]


@dataclass(frozen=True)
class Job:
    trajectory: str

    @property
    def key(self) -> str:
        return f"{self.trajectory}/quality"


def full(i: int) -> float:
    return (6 + i % 4) / 10


def tenth(i: int) -> float:
    return full(i) / 10


CLEAR: Scores = {"full": full, SMALL: tenth, LARGE: full}


def begun(path: Path, until: Until, scores: Scores, count: int = 100) -> tuple[Run, list[Job]]:
    """A run that is to be decided, with nothing in it yet, and its jobs in the order of draws."""
    ids = [f"t-{i}" for i in range(count)]
    order = [ids[at] for at in by_draw(ids, 3)]
    kept = {"max_loss": until.max_loss, "confidence": until.confidence, "batch": until.batch, "families": 2}
    kept |= {"available": count}
    config = {"model": "m", "policies": list(scores), "trajectory_ids": order, "until_decided": kept, "mode": "teacher"}
    return Store.open(path).begin("replay", config, seed=3, device="cpu"), [Job(name) for name in order]


def put(run: Run, job: Job, scores: Scores, **more: Any) -> None:
    """The rows of one trajectory under all policies."""
    i = int(job.trajectory.removeprefix("t-"))
    cell = {"trajectory_id": job.trajectory, "family": ("a", "b")[i % 2], "source": "s", "seed": 0, "probes": 10}
    cell |= {"measure": "quality", "status": "ok", **more}
    run.add(
        {
            "cells": [
                cell | {"cell_id": f"{p}-{i}", "policy": p, "answer_accuracy": score(i), "kv_tokens_peak": PEAKS[p]}
                for p, score in scores.items()
            ]
        },
        key=job.key,
    )


def go(run: Run, jobs: list[Job], until: Until, scores: Scores, stop_after: int | None = None) -> int:
    """Replay batch by batch as the engine would; how many trajectories this call did."""
    done = 0
    for batch in until.batches(run, jobs):
        for job in batch:
            if done == stop_after:
                run.finish("incomplete")
                return done
            put(run, job, scores)
            done += 1
    run.finish()
    return done


def test_it_stops_when_the_answer_stands_and_says_how_many_it_took(tmp_path: Path) -> None:
    until = Until(max_loss=0.3, batch=8)
    run, jobs = begun(tmp_path, until, CLEAR)
    used = go(run, jobs, until, CLEAR)
    found = outcome(run.store, run.id)
    assert used == found["n_used"] < 50
    assert used % 8 == 0
    assert found["n_available"] == 100
    assert (found["decided"], found["policy"], found["guarantee"]) == (True, LARGE, "anytime-valid")
    assert f"decided after {used} of 100 trajectories: it loses at most 30% of full's accuracy" in found["reason"]
    assert {policy["policy"]: policy["n"] for policy in found["policies"]} == dict.fromkeys(CLEAR, used)
    require_decided(found)
    assert decided_text(found).startswith(f"{LARGE}: decided after {used} of 100")
    said = recommendation_text(recommend(run.store, run.id))
    assert "guarantee: anytime-valid, whatever their distribution, and however often the run was looked at" in said
    assert "before the level is shared by 2 policies" in said
    assert "trajectories were drawn until the recommendation was decided" in summary_text(found)
    earlier = recommend(run.store, run.id, max_loss=0.01)
    assert (earlier["decided"], earlier["policy"]) == (False, None)
    assert [c["p_paired"] for c in earlier["candidates"]] == [None, None]


def test_the_looks_before_the_last_did_not_decide(tmp_path: Path) -> None:
    until = Until(max_loss=0.3, batch=8)
    run, jobs = begun(tmp_path / "a", until, CLEAR)
    used = go(run, jobs, until, CLEAR)
    short, _ = begun(tmp_path / "b", until, CLEAR)
    for job in jobs[: used - 8]:
        put(short, job, CLEAR)
    assert not recommend(short.store, short.id)["decided"]


def test_a_run_that_was_broken_off_goes_on_with_the_same_draws(tmp_path: Path) -> None:
    until = Until(max_loss=0.3, batch=8)
    whole, jobs = begun(tmp_path / "a", until, CLEAR)
    used = go(whole, jobs, until, CLEAR)
    broken, same = begun(tmp_path / "b", until, CLEAR)
    assert same == jobs
    first = go(broken, jobs, until, CLEAR, stop_after=11)
    again = broken.store.resume(broken.id)
    assert first + go(again, jobs, until, CLEAR) == used
    assert go(again.store.resume(again.id), jobs, until, CLEAR) == 0
    assert outcome(again.store, again.id)["reason"] == outcome(whole.store, whole.id)["reason"]


def test_of_a_broken_batch_only_the_beginning_without_a_gap_counts(tmp_path: Path) -> None:
    run, jobs = begun(tmp_path, Until(), CLEAR)
    for at in (0, 1, 2, 4, 5):
        put(run, jobs[at], CLEAR)
    assert recommend(run.store, run.id)["n_used"] == 3


def test_it_stops_at_the_most_and_goes_on_with_more(tmp_path: Path) -> None:
    few = Until(max_loss=0.3, batch=8, most=12)
    run, jobs = begun(tmp_path, few, CLEAR)
    assert go(run, jobs, few, CLEAR) == 12
    found = outcome(run.store, run.id)
    assert (found["decided"], found["policy"]) == (False, None)
    assert f"not decided after 12 of 100 trajectories: about {found['more_trajectories']} more would" in found["reason"]
    with pytest.raises(NoAnswer, match="not decided after 12") as raised:
        require_decided(found)
    assert raised.value.exit_code == 4
    more = go(run.store.resume(run.id), jobs, Until(max_loss=0.3, batch=8), CLEAR)
    assert outcome(run.store, run.id)["decided"]
    assert 0.3 * more <= found["more_trajectories"] <= 3 * more  # an estimate, labelled so


def test_a_smaller_policy_that_is_still_open_keeps_the_run_going(tmp_path: Path) -> None:
    scores = {"full": full, SMALL: lambda i: full(i) * (1 - 0.3 * (i % 3 == 0) - 0.6 * (i % 3 == 1)), LARGE: full}
    until = Until(max_loss=0.3, batch=40)
    run, jobs = begun(tmp_path, until, scores, 40)
    assert go(run, jobs, until, scores) == 40
    found = outcome(run.store, run.id)
    assert (found["decided"], found["policy"]) == (False, LARGE)
    assert f"but {SMALL} could still be better" in found["reason"]
    with pytest.raises(NoAnswer):
        require_decided(found)


def test_that_no_policy_is_good_enough_is_an_answer_too(tmp_path: Path) -> None:
    scores = {"full": full, SMALL: tenth, LARGE: tenth}
    until = Until(batch=10)
    run, jobs = begun(tmp_path, until, scores)
    assert go(run, jobs, until, scores) < 60
    found = outcome(run.store, run.id)
    assert (found["decided"], found["policy"]) == (True, None)
    assert "every policy exceeds a limit" in found["reason"]
    assert {c["verdict"] for c in recommend(run.store, run.id)["candidates"]} == {"proven to exceed a limit"}


def test_a_policy_with_failed_cells_is_out_of_the_question_and_holds_nothing_up(tmp_path: Path) -> None:
    until = Until(max_loss=0.3, batch=8)
    run, jobs = begun(tmp_path, until, CLEAR)
    failed = {"cell_id": "f", "trajectory_id": jobs[0].trajectory, "policy": SMALL, "family": "a", "source": "s"}
    run.add({"cells": [failed | {"measure": "quality", "status": "failed", "error": "too long"}]}, key="failed")
    assert go(run, jobs, until, {**CLEAR, SMALL: full}) < 50
    found = outcome(run.store, run.id)
    assert found["policy"] == LARGE
    assert found["reason"].endswith(f"; nothing is said of {SMALL}: cells failed")


def test_where_every_policy_has_failed_cells_the_run_ends_and_nothing_is_decided(tmp_path: Path) -> None:
    until = Until(max_loss=0.3, batch=12)
    run, jobs = begun(tmp_path, until, CLEAR)
    failed = {"trajectory_id": jobs[0].trajectory, "family": "a", "source": "s", "measure": "quality"}
    failed |= {"status": "failed", "error": "too long"}
    run.add({"cells": [failed | {"cell_id": f"f-{p}", "policy": p} for p in (SMALL, LARGE)]}, key="failed")
    assert go(run, jobs, until, CLEAR) == 0  # nothing to go on for
    again, jobs = begun(tmp_path / "again", until, CLEAR)
    for job in jobs[:12]:
        put(again, job, CLEAR)
    again.add({"cells": [failed | {"cell_id": f"f-{p}", "policy": p} for p in (SMALL, LARGE)]}, key="failed")
    found = recommend(again.store, again.id)
    assert (found["decided"], found["policy"], found["more_trajectories"]) == (False, None, None)
    assert found["reason"] == "nothing can be decided: every policy has failed cells"


def test_a_trajectory_on_which_full_fails_too_is_left_out_and_holds_nothing_up(tmp_path: Path) -> None:
    until = Until(max_loss=0.3, batch=8)
    run, jobs = begun(tmp_path / "one", until, CLEAR)
    lost = {"status": "failed", "error": "out of memory", "probes": None}
    put(run, jobs[2], dict.fromkeys(CLEAR, lambda i: None), **lost)
    used = go(run, jobs, until, CLEAR)
    found = recommend(run.store, run.id)
    assert (found["policy"], found["left_out"], found["n_used"]) == (LARGE, 1, used + 1)
    assert {c["failed"] for c in found["candidates"]} == {0}
    assert {c["n"] for c in found["candidates"]} == {used}
    assert found["reason"].endswith("; left out: a trajectory on which full itself failed")
    hopeless, jobs = begun(tmp_path / "all", until, CLEAR)
    for number, batch in enumerate(until.batches(hopeless, jobs)):
        assert number == 0, "what failed on a whole batch is not tried on all others"
        for job in batch:
            put(hopeless, job, dict.fromkeys(CLEAR, lambda i: None), **lost)
    found = outcome(hopeless.store, hopeless.id)
    assert (found["decided"], found["policy"], found["left_out"]) == (False, None, 8)
    assert found["reason"].endswith("; left out: 8 trajectories on which full itself failed")


def test_a_policy_with_fewer_than_ten_answers_is_not_named_though_others_have_more(tmp_path: Path) -> None:
    scores: Scores = {"full": lambda i: 0.5, SMALL: lambda i: 1.0}
    run, jobs = begun(tmp_path, Until(max_loss=0.9), scores)
    for at, job in enumerate(jobs[:30]):
        put(run, job, scores if at < 9 else {"full": scores["full"]})
    found = recommend(run.store, run.id)
    assert found["candidates"][0]["p_betting"] < 1e-6
    assert (found["decided"], found["policy"]) == (False, None)
    for job in jobs[30:32]:
        put(run, job, scores)
    assert recommend(run.store, run.id)["policy"] == SMALL


def test_ten_answers_are_the_least_and_none_is_never_a_decision(tmp_path: Path) -> None:
    scores = {"full": lambda i: 1.0, SMALL: lambda i: 0.0}
    run, jobs = begun(tmp_path, Until(), scores)
    for job in jobs[:9]:
        put(run, job, scores)
    assert recommend(run.store, run.id)["decided"] is False
    put(run, jobs[9], scores)
    assert recommend(run.store, run.id)["decided"] is True
    mute, jobs = begun(tmp_path / "mute", Until(), scores)
    for job in jobs[:11]:
        put(mute, job, scores, status="skipped")
    found = recommend(mute.store, mute.id)
    assert (found["decided"], found["policy"], found["n_used"]) == (False, None, 11)
    assert "no answer in this run has a known truth" in found["reason"]


def test_flags_belong_together_and_a_resumed_run_keeps_its_own() -> None:
    assert Until.of(None, None, None, max_loss=None, confidence=None, batch=None) is None
    with pytest.raises(UserError, match="--max-loss, --max-trajectories: only for --until-decided"):
        Until.of(None, None, 20, max_loss=0.1, confidence=None, batch=None)
    before = {"max_loss": 0.2, "confidence": 0.9, "batch": 4, "families": 7}
    assert Until.of(None, before, 20, max_loss=None, confidence=None, batch=None) == Until(0.2, 0.9, 4, 20)
    for wrong in ({"max_loss": 1.5}, {"confidence": 0.2}, {"batch": 0}):
        with pytest.raises(UserError, match="--"):
            Until.of(True, None, None, **{"max_loss": None, "confidence": None, "batch": None, **wrong})


def test_draws_are_seeded_and_those_of_a_subset_keep_their_order() -> None:
    runs = samples.load()
    one, two = (Until().drawn(runs, seed) for seed in (0, 1))
    assert sorted(t.id for t in one) == sorted(t.id for t in two)
    assert one != two
    some = runs[::3]
    assert Until().drawn(some, 0) == [t for t in one if t in some]
    with pytest.raises(UserError, match="no trajectory has a probe"):
        Until().drawn(samples.load("stress"), 0)
    assert Until().config(runs, {"available": 99}) == {
        "max_loss": 0.05,
        "confidence": 0.95,
        "batch": 8,
        "families": len({t.family for t in runs}),
        "available": 99,
    }


def test_of_a_large_set_only_the_first_draws_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(until_decided, "POOL", 7)
    store, every = Store.open(tmp_path), Until().drawn(samples.load(), 5)
    counted = {"available": len(every), "families": 2}
    assert Until().drawn_first(store, "samples", 5) == (every[:7], counted)
    assert Until(most=9).drawn_first(store, "samples", 5) == (every[:9], counted)
    assert Until().drawn(every[:7], 5) == every[:7]
    # What is not read is counted: a number that follows from the draws would tell of those to come.
    run = store.begin("ingest", {})
    run.add({"trajectories": [trajectory_row(replace(t, family=f"f-{i}")) for i, t in enumerate(every)]}, key="a")
    run.finish()
    some, all_of_them = Until().drawn_first(store, "all", 5)
    assert (len(some), all_of_them) == (7, {"available": len(every), "families": len(every)})
    assert Until().config(some, all_of_them)["families"] == len(every)


def test_the_command_draws_batches_resumes_and_says_the_same_as_python(tmp_path: Path, own_store: Path) -> None:
    model = str(save_tiny(tmp_path / "model"))
    app = cli.build()
    flags = ["replay", "--traces", "samples", "--model", model, "--policy", "sink_window(keep=0.2)", "--long", "cut"]
    flags += ["--dtype", "float32", "--threads", "1", "--until-decided", "--batch", "2", "--max-loss", "0.5"]
    first = CliRunner().invoke(app, [*flags, "--limit", "6", "--max-trajectories", "1", "--json"])
    assert first.exit_code == 4, (first.output, first.exception)
    found = json.loads(first.stdout)
    assert {"decided", "n_used", "n_available", "policy", "reason", "guarantee", "policies"} <= set(found)
    assert (found["decided"], found["n_used"], found["n_available"]) == (False, 1, 6)
    assert "no answer: not decided after 1 of 6 trajectories" in first.stderr
    order = Store.open(own_store).info(found["run"]).config["trajectory_ids"]
    resumed = kvmill.run_replay(resume=found["run"], max_trajectories=2, store=own_store)
    assert resumed["n_used"] == 2
    assert resumed == json.loads(json.dumps(plain(outcome(Store.open(own_store), found["run"]))))
    done = Store.open(own_store).query("select distinct trajectory_id t from cells")["t"].to_pylist()
    assert set(done) == set(order[:2])
    for more, said in (
        (["--measure", "both"], "no --mode closed, no --measure"),
        (["--resume", found["run"], "--max-loss", "0.2"], "cannot be resumed with other settings"),
    ):
        refused = CliRunner().invoke(app, [*flags[:-2], "--limit", "6", *more])
        assert refused.exit_code == 2, refused.output
        assert said in refused.stderr
    ordinary = CliRunner().invoke(app, ["replay", "--confidence", "0.9"])
    assert ordinary.exit_code == 2
    assert "--confidence: only for --until-decided" in ordinary.stderr
    assert "trajectories were drawn until" in CliRunner().invoke(app, ["results", found["run"]]).stdout
