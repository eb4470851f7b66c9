"""The benchmark of replay: every part runs and compares like with like, targets are judged, shares of time add up."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tiny import save_tiny

from kvmill.benchmarks import replay as bench
from kvmill.benchmarks import replay_parts
from kvmill.benchmarks.profiled import PARTS, REST, Profile, profiled
from kvmill.benchmarks.replay_parts import SIXTEEN, TOY
from kvmill.errors import UserError
from kvmill.replay.policies.registry import parse_policies
from kvmill.replay.weights import DEFAULT_MODEL


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Everything once, with a tiny model."""
    model = str(save_tiny(tmp_path_factory.mktemp("tiny-model")))
    return bench.figures(list(replay_parts.PARTS), model=model, dtype="float32", threads=1, size=TOY, force=True)


def test_every_part_has_its_targets(found: dict[str, Any]) -> None:
    assert [(target["part"], target["target"]) for target in found["targets"]] == [
        ("a", 0.7),
        ("a", 0.4),
        ("b", 1.1),
        ("c", 3.0),
        ("d", 0.01),
        ("d", 0.01),
    ]
    assert not found["complete"], "a toy is no measurement"
    for row in found["rows"]:
        assert row["value"] >= 0
        assert {"device", "threads", "versions", "date", "dtype", "disturbed"} <= set(row)
        if row["part"] != "d":
            assert row["met"] is None or not row["disturbed"]
            assert sum(row["profile"].values()) == pytest.approx(1)
            assert {"linear layers", "attention"} <= set(row["profile"])


def test_the_two_decoders_say_the_same(found: dict[str, Any]) -> None:
    """They hold the same cache: what differs is what it costs."""
    (row,) = (row for row in found["rows"] if row["part"] == "c")
    assert row["same_tokens"]


def test_a_stepwise_row_has_time_for_actions(found: dict[str, Any]) -> None:
    teacher, stepwise = (row["profile_s"] for row in found["rows"] if row["part"] == "a")
    assert "actions" in stepwise
    assert "actions" not in teacher


def test_the_sixteen_are_sixteen() -> None:
    assert [str(policy) for policy in parse_policies(SIXTEEN)] == list(SIXTEEN)
    assert len(SIXTEEN) == 16


def test_the_text_shows_where_the_time_of_a_missed_target_went(found: dict[str, Any]) -> None:
    rows = [{**row, "met": row["part"] == "b"} for row in found["rows"]]
    lines = bench.text(found | {"rows": rows}).splitlines()
    shown = [line for line in lines if "linear layers" in line]
    assert [line[0] for line in shown] == ["a", "a", "c"]


def test_a_part_is_charged_without_what_happens_inside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 1.0, 3.0, 7.0, 8.0, 8.5])
    monkeypatch.setattr("kvmill.benchmarks.profiled.time.perf_counter", lambda: next(clock))
    profile = Profile()
    with profile.inside("outer"), profile.inside("inner"):
        pass
    profile.close()
    assert profile.seconds == {REST: 1.5, "outer": 3.0, "inner": 4.0}
    assert list(profile.shares()) == ["inner", "outer", REST]


def test_the_engine_is_as_it_was_after_profiling() -> None:
    before = [getattr(owner, name) for owner, name, _ in PARTS]

    def broken() -> None:
        with profiled():
            assert all(getattr(o, n) is not f for (o, n, _), f in zip(PARTS, before, strict=True))
            raise RuntimeError("planted")

    with pytest.raises(RuntimeError, match="planted"):
        broken()
    assert [getattr(owner, name) for owner, name, _ in PARTS] == before


def test_a_busy_machine_is_refused_and_only_whole_runs_are_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "other_cores", lambda *_: 1.5)
    with pytest.raises(UserError, match=r"use 1\.5 cores"):
        bench.figures(["b"])
    monkeypatch.setattr(bench, "FIGURES", tmp_path / "replay.json")
    for flag in (["--part", "b"], ["--toy"]):
        monkeypatch.setattr(sys, "argv", ["kvmill bench replay", "--write", *flag])
        with pytest.raises(SystemExit):
            bench.main()
        assert "--write needs all parts" in capsys.readouterr().err
    assert not (tmp_path / "replay.json").exists()


def test_a_whole_run_is_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, found: dict[str, Any]) -> None:
    monkeypatch.setattr(bench, "FIGURES", tmp_path / "replay.json")
    monkeypatch.setattr(bench, "PAGE", tmp_path / "method.md")
    bench.PAGE.write_text("Kept.\n\n## What a replay costs\n\nOld.\n")
    known = {**found, "model": DEFAULT_MODEL, "rows": [{**row, "model": DEFAULT_MODEL} for row in found["rows"]]}
    monkeypatch.setattr(bench, "figures", lambda *_, **__: known)
    monkeypatch.setattr(sys, "argv", ["kvmill bench replay", "--write", "--json"])
    bench.main()
    assert json.loads((tmp_path / "replay.json").read_text())["targets"] == found["targets"]
    assert bench.PAGE.read_text().startswith("Kept.\n\n## What a replay costs\n\nWritten by")
