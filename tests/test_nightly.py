"""Nights end to end with a tiny model: baselines, exit codes, reports, the plan, and the baseline measured again."""

from __future__ import annotations

import json
import shutil
import xml.etree.ElementTree as ET
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from nights import INGEST, TE, configured, filled, night
from tiny import save_tiny

from kvmill.nightly import baseline, commands
from kvmill.nightly import night as main_path
from kvmill.replay.policies.te_state import TokenEvictionState
from kvmill.traces.store import Store

ROOT = Path(__file__).resolve().parents[1]
PLAN = """
[plan]
workload = "samples"
model = "qwen3-8b"
gpu = "h100"
slo = ["ttft_p95=2"]
agents = 4
replications = 2
max_gpus = 4
sensitivity = false
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny(tmp_path_factory.mktemp("model")))


@pytest.fixture(scope="module")
def accepted(tmp_path_factory: pytest.TempPathFactory, model: str) -> tuple[Store, str]:
    """A store with one accepted night of one policy, latency timed; and that night."""
    folder = tmp_path_factory.mktemp("accepted")
    store = filled(folder / "store")
    config = configured(folder, model, (TE,), 'measure = "both"\nlatency_repeats = 1\n')
    code, found, _ = night(store, config)
    assert code == 4
    assert night(store, config, "--accept", found["run"])[0] == 0
    return store, found["run"]


def test_the_second_night_is_green_and_every_report_says_so(accepted, model: str, tmp_path: Path) -> None:
    store, first = accepted
    config = configured(tmp_path, model, (TE,), 'measure = "both"\nlatency_repeats = 1\n')
    code, found, said = night(store, config)
    assert (code, found["verdict"], found["exit_code"], said) == (0, "green", 0, "")
    assert found["baseline"] == first
    assert {(row["policy"], row["family"]) for row in found["rows"]} == {
        (policy, family) for policy in ("full", TE) for family in ("operations", "registry")
    }
    assert {row["metric"] for row in found["latency"]} == {"ttft_s", "tpot_s"}
    assert all("baseline" in row["detail"] and not row["blocks"] for row in found["latency"])
    out = tmp_path / "out"
    assert json.loads((out / "nightly.json").read_text())["run"] == found["run"]
    suite = ET.parse(out / "nightly.xml").getroot()[0]
    assert (suite.get("tests"), suite.get("failures")) == ("5", "0")
    assert (out / "nightly.md").read_text().startswith("# ✅ tiny: green")
    rows = pq.read_table(out / "gates.parquet").to_pylist()
    stored = store.query("select * from gates where run_id = ?", [found["run"]]).to_pylist()
    assert sorted(map(str, rows)) == sorted(map(str, stored))
    assert len(rows) == 4
    text = (out / "kvmill.prom").read_text()
    assert 'kvmill_nightly_exit_code{name="tiny"} 0\n' in text
    assert 'kvmill_nightly_last_success_timestamp_seconds{name="tiny"} ' in text
    assert baseline.find(store, "tiny", None).night == found["run"], "a green night is the next baseline"


def test_another_machine_or_dtype_is_exit_2_and_leaves_no_report(
    accepted, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, first = accepted
    config = configured(tmp_path, model, (TE,))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "nightly.xml").write_text("of yesterday")
    with monkeypatch.context() as patch:
        patch.setattr(main_path, "machine_type", lambda: "another, 96 cores")
        code, found, said = night(store, config)
    assert (code, found) == (2, {})
    assert "is from another machine" in said
    assert "--rerun-baseline" in said
    assert not (tmp_path / "out" / "nightly.xml").exists()
    config.write_text(config.read_text().replace("float32", "bfloat16"))
    code, found, said = night(store, config, "--baseline", first)
    assert (code, found) == (2, {})
    assert "is in float32, tonight in bfloat16" in said


def test_an_unknown_baseline_and_a_partial_one_are_exit_2(accepted, model: str, tmp_path: Path) -> None:
    store, _ = accepted
    config = configured(tmp_path, model, (TE,))
    assert "unknown run 'nightly-0'" in night(store, config, "--baseline", "nightly-0")[2]
    assert "a baseline is a night or a replay run" in night(store, config, "--baseline", INGEST)[2]
    run = store.begin("replay", {"dtype": "float32"}, run_id="replay-partial")
    run.finish("incomplete")
    code, _, said = night(store, config, "--baseline", run.id)
    assert code == 2
    assert "a partial run is no baseline" in said
    assert night(store, config, "--accept", run.id)[0] == 2
    code, _, said = night(store, config, "--accept", run.id, "--rerun-baseline")
    assert code == 2
    assert "give it without" in said


def test_a_failed_cell_without_a_baseline_is_exit_6(
    accepted, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: object, *args: object) -> None:
        raise MemoryError("planted: 12 GiB")

    monkeypatch.setattr(TokenEvictionState, "close", broken)
    config = configured(tmp_path, model, (TE,))
    config.write_text(config.read_text().replace('"tiny"', '"other"'))
    code, found, said = night(accepted[0], config)
    assert (code, found["verdict"]) == (6, "incomplete")
    assert said.startswith("incomplete: ")
    assert baseline.find(accepted[0], "other", None) is None


def test_a_changed_policy_list_is_exit_5_until_it_is_accepted(accepted, model: str, tmp_path: Path) -> None:
    store, first = accepted
    config = configured(tmp_path, model, ("random(keep=0.2)",))
    code, found, _ = night(store, config, "--baseline", first)
    assert code == 5
    rows = {(row["policy"], row["category"]) for row in found["rows"] if row["blocks"]}
    assert rows == {(TE, "ROWS_REMOVED"), ("random(keep=0.2)", "ROWS_ADDED")}
    config.write_text(config.read_text().replace('"tiny"', '"changed"'))
    assert night(store, config, "--accept", found["run"])[0] == 0
    assert baseline.find(store, "changed", None).night == found["run"]


def test_the_baseline_measured_again_by_this_code_is_green(accepted, model: str, tmp_path: Path) -> None:
    store, _ = accepted
    known = baseline.find(store, "tiny", None)
    assert known is not None
    code, found, said = night(store, configured(tmp_path, model, (TE,)), "--rerun-baseline")
    assert (code, found["verdict"], found["rerun"]) == (0, "green", True), said
    assert found["baseline"] == known.name
    assert store.info(found["baseline_replay"]).created_at > store.info(found["replay"]).created_at


def test_other_code_is_the_baseline_and_the_fleet_is_planned_anew(accepted, model: str, tmp_path: Path) -> None:
    """The old checkout kept other tokens: the night finds it, without any accepted night."""
    store, _ = accepted
    old = tmp_path / "old"
    left_out = shutil.ignore_patterns(".*", "tests", "docs", "benchmarks", "__pycache__", "*.egg-info")
    shutil.copytree(ROOT, old, ignore=left_out)
    state = old / "replay" / "policies" / "te_state.py"
    right = "self.select(self.sources(view), view, keep, forced)"
    assert right in state.read_text()
    moved = f"(({right} + 1) % view.keys.shape[1]).sort(-1).values"
    state.write_text(state.read_text().replace(right, moved))
    config = configured(tmp_path, model, (TE,), PLAN)
    config.write_text(f'baseline_checkout = "{old}"\n{config.read_text().replace("tiny", "other")}')
    code, found, said = night(store, config, "--rerun-baseline")
    assert (code, found["verdict"], found["baseline"]) == (5, "regression", None), said
    assert {(row["policy"], row["metric"]) for row in found["rows"] if row["blocks"]} >= {(TE, "kept")}
    again = store.info(found["baseline_replay"])
    assert again.config["measured_by"]["versions"]["kvmill"]
    assert again.rows("cells") == store.info(found["replay"]).rows("cells")
    assert {row["policy"] for row in found["plan"]["rows"]} == {"full", TE}
    assert all(row["gpus"] and row["gpus_before"] is None for row in found["plan"]["rows"])
    assert "GPUs needed" in (tmp_path / "out" / "nightly.md").read_text()
    assert "GPUs tonight" in commands.night_text(found)


def test_other_code_that_is_not_there_is_exit_2_before_anything_runs(accepted, model: str, tmp_path: Path) -> None:
    store, _ = accepted
    config = configured(tmp_path, model, (TE,))
    plain, before = config.read_text(), len(store.runs())
    for line in ('baseline_python = "/nowhere/python"', f'baseline_checkout = "{tmp_path}"'):
        config.write_text(f"{line}\n{plain}")
        code, _, said = night(store, config, "--rerun-baseline")
        assert code == 2
        assert said.startswith(f"error: {line.partition(' ')[0]} ")
    assert len(store.runs()) == before


def test_other_code_that_fails_is_exit_2_with_what_it_said(accepted, model: str, tmp_path: Path) -> None:
    store, _ = accepted
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\necho warming up >&2\necho 'error: no such flag' >&2\nexit 2\n")
    program.chmod(0o755)
    config = configured(tmp_path, model, (TE,))
    config.write_text(f'baseline_python = "{program}"\n{config.read_text()}')
    code, _, said = night(store, config, "--rerun-baseline")
    assert code == 2
    assert "the baseline's code failed with exit code 2: error: no such flag" in said
    assert store.runs("nightly")[0].state == "incomplete"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_nights_with_the_real_model(tmp_path: Path) -> None:
    """Ten short trajectories of each family, accepted, then green."""
    store, config = filled(tmp_path / "store", turns=4), configured(tmp_path, "smollm2-135m", (TE,))
    config.write_text(config.read_text().replace('dtype = "float32"\n', ""))
    code, found, _ = night(store, config)
    assert code == 4
    assert night(store, config, "--accept", found["run"])[0] == 0
    code, found, _ = night(store, config)
    assert (code, found["verdict"]) == (0, "green")
    assert {row["category"] for row in found["rows"]} == {"OK"}


def test_a_pinned_trajectory_that_changed_under_its_id_is_exit_5(accepted, model: str, tmp_path: Path) -> None:
    """Without that, answers about other words would be held against the baseline's, and called the same."""
    store, first = accepted
    shutil.copytree(store.path, tmp_path / "store")
    copied = Store.open(tmp_path / "store")
    rows = copied.open_run(INGEST).read("trajectories").to_pylist()
    spoken = json.loads(rows[0]["record"])
    spoken["prefix"][-1]["content"] += " Hurry."
    rows[0]["record"] = json.dumps(spoken)
    table = copied.open_run(INGEST).read("trajectories")
    copied.open_run(INGEST).rewrite("trajectories", lambda _: table.from_pylist(rows, schema=table.schema))
    config = configured(tmp_path, model, (TE,), 'measure = "both"\nlatency_repeats = 1\n')
    code, found, said = night(copied, config, "--baseline", first)
    assert code == 5, said
    red = [row for row in found["rows"] if row["blocks"]]
    assert {(row["policy"], row["category"], row["n"]) for row in red} == {
        (policy, "ROWS_REMOVED", 1) for policy in ("full", TE)
    }
    assert all(row["detail"].endswith(f"than in the baseline: {rows[0]['trajectory_id']}") for row in red)
