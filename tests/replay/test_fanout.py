"""Whole runs with a tiny model saved to disk: rows, failures, kill and resume, determinism."""

from __future__ import annotations

import math
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from replaying import POLICIES, TABLES, replay, rows, some
from tiny import save_tiny

from kvmill.errors import UserError
from kvmill.replay import fanout
from kvmill.replay import rows as cell_rows
from kvmill.replay.engine import BranchRun
from kvmill.replay.fanout import run_replay
from kvmill.replay.machine import processor
from kvmill.replay.policies.te_state import TokenEvictionState
from kvmill.traces.store import Store
from kvmill.traces.trajectory import Trajectory


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny(tmp_path_factory.mktemp("tiny-model")))


def test_a_run_stores_every_cell_and_its_rows_agree(tmp_path: Path, model: str) -> None:
    store = Store.open(tmp_path)
    run = replay(store, model, measure="both", latency_repeats=1, latency_trajectories=[some(1)[0].id])
    info = store.info(run)
    assert info.state == "complete"
    assert info.config["policies"] == ["full", *POLICIES]
    cells = store.query("select * from cells where measure = 'quality'").to_pylist()
    assert len(cells) == 6
    assert {c["status"] for c in cells} == {"ok"}
    for c in cells:
        turns = store.query("select * from turn_metrics where cell_id = ? order by turn", [c["cell_id"]]).to_pylist()
        later = [t for t in turns if t["turn"] > 0]
        scored = sum(t["scored_tokens"] for t in later)
        assert scored == c["scored_tokens"]
        assert math.isclose(sum(t["nll"] * t["scored_tokens"] for t in later) / scored, c["nll"], rel_tol=1e-9)
        assert c["kv_tokens_peak"] == max(t["kv_tokens_peak"] for t in turns)
        assert c["kv_tokens_final"] == turns[-1]["kv_tokens"]
        kept = store.query("select sum(share) as s, count(*) as n from kept where cell_id = ?", [c["cell_id"]])
        assert math.isclose(kept["s"][0].as_py(), c["kv_tokens_final"], rel_tol=1e-4)
        assert kept["n"][0].as_py() == c["logical_tokens"]
        probes = store.query("select * from probes where cell_id = ?", [c["cell_id"]]).to_pylist()
        assert len(probes) == c["probes"] > 0
        assert math.isclose(sum(p["correct"] for p in probes) / len(probes), c["answer_accuracy"])
        assert {p["age_turns"] for p in probes} <= {0, 1, 2}
        candidates = [len(p.candidates) for t in some(2) if t.id == c["trajectory_id"] for p in t.probes]
        assert math.isclose(c["chance_accuracy"], sum(1 / n for n in candidates) / len(candidates))
        assert c["ttft_s"] is None
    full = [c for c in cells if c["policy"] == "full"]
    assert all((c["delta_nll"], c["kl"], c["top1_agreement"]) == (0, 0, 1) for c in full)
    te = [c for c in cells if c["policy"] == POLICIES[0]]
    pairs = zip(sorted(te, key=str), sorted(full, key=str), strict=True)
    assert all(a["kv_tokens_peak"] < b["kv_tokens_peak"] for a, b in pairs)
    latency = store.query("select * from cells where measure = 'latency'").to_pylist()
    assert len(latency) == 3
    assert all(c["ttft_s"] > 0 and c["tpot_s"] > 0 and c["nll"] is None and c["status"] == "ok" for c in latency)


def test_same_identity_same_rows_and_cell_ids(tmp_path: Path, model: str) -> None:
    first, second = Store.open(tmp_path / "a"), Store.open(tmp_path / "b")
    one, two = replay(first, model), replay(second, model)
    for table in TABLES:
        assert rows(first, one, table) == rows(second, two, table)
    third = Store.open(tmp_path / "c")
    other = replay(third, model, seed=1)
    ids = [set(s.query("select cell_id from cells")["cell_id"].to_pylist()) for s in (first, third)]
    assert not ids[0] & ids[1]
    assert other


def test_a_failed_policy_is_a_row_and_the_run_goes_on(
    tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: object, *args: object) -> None:
        raise MemoryError("planted: 12 GiB")

    monkeypatch.setattr(TokenEvictionState, "close", broken)
    store = Store.open(tmp_path)
    run = replay(store, model)
    found = store.query("select policy, status, error from cells order by policy").to_pylist()
    assert [f["status"] for f in found] == ["ok", "ok", "ok", "ok", "failed", "failed"]
    assert "planted: 12 GiB" in found[-1]["error"]
    assert store.info(run).state == "complete"


def test_a_trajectory_longer_than_the_window_is_a_skipped_cell_that_says_so(tmp_path: Path, model: str) -> None:
    store = Store.open(tmp_path)
    text = some(1)[0]
    long = replace(text, turns=text.turns * 30)
    run_replay(store=store, trajectories=[long], model=model, policies=["full"], threads=1, progress=False)
    (cell,) = store.query("select status, error from cells").to_pylist()
    assert cell["status"] == "skipped"
    assert "takes 4096" in cell["error"]


def test_interrupted_by_ctrl_c_then_resumed(tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store, count = Store.open(tmp_path / "a"), [0]
    right = fanout.Cells.quality

    def stop(self: fanout.Cells, trajectory: Trajectory) -> dict:
        count[0] += 1
        if count[0] == 2:
            raise KeyboardInterrupt
        return right(self, trajectory)

    with monkeypatch.context() as patch:
        patch.setattr(fanout.Cells, "quality", stop)
        with pytest.raises(KeyboardInterrupt):
            replay(store, model, count=3)
    (info,) = store.runs("replay")
    assert info.state == "incomplete"
    assert replay(store, model, count=3, resume=info.run_id) == info.run_id
    straight = Store.open(tmp_path / "b")
    whole = replay(straight, model, count=3)
    for table in TABLES:
        assert rows(store, info.run_id, table) == rows(straight, whole, table)
    with pytest.raises(UserError, match=r"seed was 0, now 5"):
        replay(store, model, count=3, resume=info.run_id, seed=5)


def test_a_run_is_not_resumed_on_trajectories_that_changed_under_their_ids(tmp_path: Path, model: str) -> None:
    store = Store.open(tmp_path)
    first, second = some(2)
    arguments = {"model": model, "policies": ["full"], "threads": 1, "progress": False}
    run = run_replay(store=store, trajectories=[first, second], **arguments)
    other = replace(second.turns[1], assistant=replace(second.turns[1].assistant, content="Something else."))
    redacted = replace(second, turns=(second.turns[0], other, *second.turns[2:]))
    for now in (redacted, replace(second, probes=second.probes[:-1]), replace(second, already_compacted=True)):
        with pytest.raises(UserError, match=rf"{run} cannot be resumed: {second.id} changed since it began \(other"):
            run_replay(store=store, trajectories=[first, now], resume=run, **arguments)
    # What was never said in it may change: another file, another reader's losses.
    told = replace(second, losses=("reasoning_dropped:3",), meta={"file": "again.json"})
    assert run_replay(store=store, trajectories=[first, told], resume=run, **arguments) == run


def test_a_run_is_not_resumed_on_another_type_of_machine(tmp_path: Path, model: str) -> None:
    """Neither in this process nor on workers: figures of two processors are not of one run."""
    store = Store.open(tmp_path)
    run = replay(store, model, count=1)
    here = processor()
    settings = dict(store.info(run).config)
    assert settings.pop("worker") == {"processor": here}
    assert replay(store, model, count=1, resume=run) == run
    on = {"executor": "ray", "worker": {"processor": "Another"}}
    with pytest.raises(UserError, match=f"run {run} was begun on {re.escape(here)}, and would go on on Another"):
        fanout._open(store, settings, on, 0, run)
    store.open_run(run).annotate(worker={"processor": "Another"})
    with pytest.raises(UserError, match=f"run {run} was begun on Another, and would go on on {re.escape(here)}"):
        replay(store, model, count=1, resume=run)
    assert fanout._open(store, settings, on, 0, run).id == run


def test_killed_in_the_middle_then_resumed_loses_and_doubles_nothing(tmp_path: Path, model: str) -> None:
    program = (
        "import sys; sys.path[:0] = sys.argv[3:]\nfrom test_fanout_child import main; main(sys.argv[1], sys.argv[2])\n"
    )
    child = tmp_path / "test_fanout_child.py"
    child.write_text(
        "from dataclasses import replace\n"
        "from kvmill.replay.fanout import run_replay\n"
        "from kvmill.traces import samples\n"
        "from kvmill.traces.store import Store\n"
        "def main(store, model):\n"
        "    cut = [replace(t, turns=t.turns[:3], probes=tuple(p for p in t.probes if p.fact_turn < 3))"
        " for t in samples.load()[:6]]\n"
        f"    run_replay(store=Store.open(store), trajectories=cut, model=model, policies={POLICIES!r},"
        " dtype='float32', threads=1, progress=False)\n"
    )
    where = tmp_path / "store"
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(where), model, str(tmp_path)], env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    store, deadline = Store.open(where), time.monotonic() + 120
    while time.monotonic() < deadline and not any(run.keys for run in store.runs("replay")):
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    (info,) = store.runs("replay")
    assert info.state == "running"
    assert 1 <= len(info.keys) <= 6
    run = replay(store, model, count=6, resume=info.run_id)
    assert store.check() == []
    straight = Store.open(tmp_path / "straight")
    whole = replay(straight, model, count=6)
    for table in TABLES:
        assert rows(store, run, table) == rows(straight, whole, table)


def test_bad_arguments_are_one_clear_line(tmp_path: Path, model: str) -> None:
    store = Store.open(tmp_path)
    with pytest.raises(UserError, match="--measure speed"):
        replay(store, model, measure="speed")
    with pytest.raises(UserError, match="unknown policy 'lru'"):
        replay(store, model, policies=["lru"])
    with pytest.raises(UserError, match="no trajectories"):
        run_replay(store=store, trajectories=[], model=model, policies=["full"])
    assert store.runs() == []


def test_an_equal_size_run_measures_equal_rows(tmp_path: Path, model: str) -> None:
    store = Store.open(tmp_path)
    reference = "te(proxy=assistant,delay=1,keep=0.2)"
    run = replay(store, model, policies=[reference, "random", "te(proxy=boundary)"], equal_size=reference)
    assert store.info(run).config["equal_size"] == reference
    found = store.query("select policy, avg(kv_tokens_peak) as rows from cells group by policy").to_pylist()
    held = {row["policy"].partition("(")[0] + row["policy"][-6:]: row["rows"] for row in found}
    assert len(held) == 4
    target = next(row["rows"] for row in found if row["policy"] == reference)
    others = [row["rows"] for row in found if row["policy"] not in ("full", reference)]
    assert others == pytest.approx([target, target], rel=0.02)


def test_figures_that_are_no_numbers_fail_their_cell(
    tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, right = Store.open(tmp_path), cell_rows._quality_cell

    def overflows(run: BranchRun, full: BranchRun) -> dict[str, object]:
        return {**right(run, full), **({"kl": float("nan")} if run.policy.name == "te" else {})}

    monkeypatch.setattr(cell_rows, "_quality_cell", overflows)
    run = store.open_run(replay(store, model, count=1))
    found = {row["policy"]: row for row in run.read("cells").to_pylist()}
    assert [found[name]["status"] for name in ("full", *POLICIES)] == ["ok", "failed", "ok"]
    assert found[POLICIES[0]]["error"] == "kl came out as NaN or infinite: the model's numbers overflow in float32"
    assert set(run.read("kept")["policy"].to_pylist()) == {"full", POLICIES[1]}
