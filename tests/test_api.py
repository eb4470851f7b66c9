"""The Python verbs return what the command line prints, and keep doing so after their sub-packages were imported."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import fabricate
import pytest
import typer
from typer.testing import CliRunner

import kvmill
from kvmill import cli
from kvmill.console import plain
from kvmill.errors import InputError, UserError
from kvmill.traces.store import Store

SLO = ["ttft_p95=2", "tpot_p95=0.05"]
SMALL = ["--model", "qwen3-8b", "--gpu", "h100", "--agents", "8"]


@pytest.fixture(scope="module")
def app() -> typer.Typer:
    return cli.build()


def printed(app: typer.Typer, *args: str) -> dict[str, Any]:
    result = CliRunner().invoke(app, [*args, "--json"])
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def same(one: Any, other: dict[str, Any], *, but: tuple[str, ...] = ()) -> None:
    """Equal as JSON, up to identifiers of the two runs."""
    left = json.loads(json.dumps(plain(one)))
    assert {k: v for k, v in left.items() if k not in but} == {k: v for k, v in other.items() if k not in but}


CHAT = {"messages": [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Good day"}]}


def test_read_traces_is_traces_ingest(app, tmp_path: Path):
    file = tmp_path / "runs.jsonl"
    file.write_text("\n".join([json.dumps(CHAT), "{broken", json.dumps(CHAT | {"id": 1})]))
    mine = kvmill.read_traces(file, store=tmp_path / "a")
    assert (mine["accepted"] + mine["duplicates"], mine["rejected"]) == (2, 1)
    theirs = printed(app, "traces", "ingest", str(file), "--store", str(tmp_path / "b"))
    same(mine, theirs, but=("run", "reject_file"))
    with pytest.raises(InputError):
        kvmill.read_traces(file, strict=True, store=tmp_path / "c")
    with pytest.raises(UserError, match="no such file"):
        kvmill.read_traces(tmp_path / "absent.jsonl", store=tmp_path / "d")


def test_results_are_those_of_the_command(app, own_store: Path):
    run = fabricate.replay(Store.open(own_store))
    same(kvmill.results(), printed(app, "results"))
    same(kvmill.results(run, by="age"), printed(app, "results", run, "--by", "age"))
    assert kvmill.results()["policies"][0]["policy"] == "full"


def test_results_without_a_run_are_the_users_to_fix(own_store: Path):
    with pytest.raises(UserError, match="kvmill replay"):
        kvmill.results()


def test_plan_is_that_of_the_command(app, own_store: Path):
    fabricate.replay(Store.open(own_store))
    mine = kvmill.plan("samples", "qwen3-8b", "h100", slo=SLO, agents=8, replications=2, turns=200, sensitivity=False)
    assert [row["policy"] for row in mine["plans"]] == ["full", "te(proxy=assistant,delay=1,keep=0.2)"]
    assert mine["plans"][1]["quality_n"] == 4, "quality comes from the newest replay"
    theirs = printed(
        app, "plan", "--workload", "samples", *SMALL, "--slo", SLO[0], "--slo", SLO[1], "--replications", "2"
    )
    assert set(theirs) == set(mine)
    assert [row["gpus"] for row in theirs["plans"]] == [row["gpus"] for row in mine["plans"]]


def test_a_plan_without_a_feasible_fleet_is_an_answer_that_names_what_binds(app, own_store: Path):
    hopeless = {"agents": 8, "replications": 2, "max_gpus": 2}
    found = kvmill.plan("samples", "qwen3-8b", "h100", slo={"ttft_p95": 1e-6}, turns=100, **hopeless)
    assert [row["feasible"] for row in found["plans"]] == [False, False]
    assert all(row["binding_constraint"] and row["gpus"] is None for row in found["plans"])
    args = ["plan", "--workload", "samples", *SMALL, "--slo", "ttft_p95=0.000001", "--replications", "2"]
    result = CliRunner().invoke(app, [*args, "--max-gpus", "2", "--json"])
    assert result.exit_code == 4
    assert json.loads(result.stdout)["plans"][0]["feasible"] is False


def test_simulate_is_that_of_the_command(app, own_store: Path):
    mine = kvmill.simulate("samples", "qwen3-8b", "h100", 1, agents=8)
    theirs = printed(app, "simulate", "--workload", "samples", *SMALL, "--gpus", "1")
    same(mine, theirs, but=("run", "wall_s"))


def test_verbs_survive_the_import_of_their_sub_packages():
    script = (
        "import kvmill\n"
        "names = ['read_traces', 'run_replay', 'results', 'recommend', 'simulate', 'plan', 'validate', 'select']\n"
        "names += ['session']\n"
        "before = {name: getattr(kvmill, name) for name in names}\n"
        "import kvmill.traces, kvmill.kernels, kvmill.replay, kvmill.simulator, kvmill.simulator.plan\n"
        "import kvmill.replay.results, kvmill.dashboard, kvmill.benchmarks\n"
        "assert all(getattr(kvmill, name) is verb and callable(verb) for name, verb in before.items())\n"
    )
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert out.returncode == 0, out.stderr


def test_importing_the_package_is_light_and_unknown_names_are_refused():
    script = "import sys, kvmill; kvmill.plan; print(sorted({'torch','numpy','pyarrow','duckdb'} & set(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
    with pytest.raises(AttributeError, match="no attribute 'recommendation'"):
        _ = kvmill.recommendation
    verbs = {"read_traces", "run_replay", "results", "recommend", "simulate", "plan", "validate", "select", "session"}
    assert verbs <= set(dir(kvmill))
