"""The fleet planned anew: which policies, from which run, and how many GPUs it was before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fabricate
import pytest

from kvmill.nightly import fleet
from kvmill.replay import machine
from kvmill.simulator import answers
from kvmill.traces.store import Store

PLAN = {"workload": "long-agents", "model": "qwen3.5-27b", "gpu": "h200", "slo": ["ttft_p95=2"], "agents": 8}


def test_the_change_in_gpus_is_against_the_baselines_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, asked = Store.open(tmp_path), []

    def planned(**flags: Any) -> dict[str, Any]:
        asked.append(flags)
        return fabricate.planned()

    monkeypatch.setattr(answers, "plan_named", planned)
    run = fabricate.replay(store)
    before = {fabricate.FULL: 27, fabricate.DELAYED: 12}
    rows = {row["policy"]: row for row in fleet.planned(store, PLAN, run, before)["rows"]}
    assert rows[fabricate.FULL] == {"policy": fabricate.FULL, "gpus": 27, "gpus_before": 27, "gpus_change": 0}
    assert (rows[fabricate.DELAYED]["gpus"], rows[fabricate.DELAYED]["gpus_change"]) == (14, 2)
    assert (rows[fabricate.BOUNDARY]["gpus_before"], rows[fabricate.BOUNDARY]["gpus_change"]) == (None, None)
    (flags,) = asked
    assert [flags[name] for name in ("workload", "model", "gpu")] == ["long-agents", "qwen3.5-27b", "h200"]
    assert (flags["run"], flags["agents"], flags["policies"]) == (run, 8, list(fabricate.MEASURED))
    assert all(row["gpus_before"] is None for row in fleet.planned(store, PLAN, run, None)["rows"])


def test_a_type_of_machine_is_processor_cores_and_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine.machine_type() == machine.machine_type()
    assert " cores" in machine.machine_type()
    for number in range(2):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "information").write_text("Model: \t\t NVIDIA H200\nIRQ:   63\n")
    monkeypatch.setattr(machine, "_GPUS", tmp_path)
    assert machine.machine_type().endswith(" cores, 2 × NVIDIA H200")
