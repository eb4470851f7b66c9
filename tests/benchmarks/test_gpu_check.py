"""The script for a GPU machine proves itself on a CPU: bare, from its own checkout, and whatever one part does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from kvmill.benchmarks import gpu_check, gpu_parts
from kvmill.benchmarks.gpu_turn import Model
from kvmill.simulator.catalogue import CATALOGUE

SCRIPT = Path(gpu_check.__file__).resolve()
ABSENT = ("accelerate", "duckdb", "gguf", "jinja2", "orjson", "pandas", "pydantic", "pytest", "rich", "scipy", "simpy")
ABSENT += ("streamlit", "typer", "altair", "psutil")
WITHOUT = f"""
from importlib.machinery import PathFinder
find = PathFinder.find_spec
PathFinder.find_spec = lambda name, path=None, target=None: (
    None if name.partition(".")[0] in {ABSENT!r} else find(name, path, target)
)
"""


def script(where: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """The script as a GPU machine runs it: without the packages that are not there."""
    (where / "sitecustomize.py").write_text(WITHOUT)
    env = {**os.environ, "PYTHONPATH": str(where), "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, str(SCRIPT), "--out", str(where / "out.json"), *flags]
    return subprocess.run(command, cwd=where, env=env, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def dry_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str]:
    where = tmp_path_factory.mktemp("dry-run")
    done = script(where, "--dry-run")
    assert done.returncode in (0, 6), done.stderr[-2000:]
    return json.loads((where / "out.json").read_text()), done.stdout + done.stderr


def test_every_part_ends_on_a_bare_machine(dry_run: tuple[dict[str, Any], str]) -> None:
    found, said = dry_run
    assert [part for part in found["parts"] if part["status"] != "ok"] == [], said
    assert {part["part"].split()[0] for part in found["parts"]} == {"verify", "roofline", "time", "turn", "replay"}
    assert [row for row in found["rows"] if row["seconds"] is None] == []


def test_every_form_of_every_operation_is_right(dry_run: tuple[dict[str, Any], str]) -> None:
    found, said = dry_run
    assert {case["impl"] for case in found["cases"]} == {"torch", "triton"}
    assert {op: reason for op, reason in found["verified"].items() if reason} == {}, said


def test_the_replay_holds_its_footprints_and_evicts(dry_run: tuple[dict[str, Any], str]) -> None:
    full, te = (row for row in dry_run[0]["replay"] if row["measure"] == "quality")
    assert (full["error"], te["error"]) == (None, None)
    assert te["kv_rows"] < full["kv_rows"] == full["tokens"]


def test_a_dry_run_meets_no_target_and_says_so(dry_run: tuple[dict[str, Any], str]) -> None:
    found, said = dry_run
    assert len(found["targets"]) == 4
    assert all(aim["met"] is None and aim["value"] is None for aim in found["targets"])
    assert "the seconds mean nothing" in said


def test_without_a_gpu_it_says_so_in_one_line(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("a GPU is here")
    done = script(tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: no CUDA device is here: nothing can be said about a GPU (try --dry-run)\n"
    assert not (tmp_path / "out.json").exists()


def test_a_part_that_hangs_or_dies_is_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        gpu_parts, "parts", lambda toy: {"verify pool_topk int7": (200.0, True), "replay": (0.0, False)}
    )
    with gpu_check.linked():
        found = gpu_check.check(tmp_path, toy=True)
    first, second = found["parts"]
    assert first["status"] == "failed"
    assert first["error"].startswith("KeyError: 'int7'")
    assert second["status"] == "out of time"
    assert found["verified"] == {"pool_topk": "verify pool_topk int7: failed"}
    assert found["roofline"] is None
    assert gpu_check.report(found | {"seconds": 1.0})


def test_a_wrong_case_or_an_unfinished_verification_takes_the_speed_up_away() -> None:
    late = "verify k_means float16"
    ends = {"verify merge_kv rotate_keys": {"status": "ok"}, "verify k_means float32": {"status": "ok"}}
    ends |= {late: {"status": "out of time"}, "roofline": {"status": "ok"}}
    case = {"op": "merge_kv", "case": "n 9", "impl": "triton", "passed": False, "error": None, "deviation": 3.0}
    assert gpu_check.verdicts([case], ends) == {
        "merge_kv": "case n 9, triton: 3 times what is allowed",
        "rotate_keys": None,
        "k_means": f"{late}: out of time",
    }


def test_the_decode_step_multiplies_every_parameter_of_the_model_once() -> None:
    model, shape = Model(), CATALOGUE["qwen3.5-27b"]
    body = model.groups * sum(rows * columns for rows, columns in model.group_matrices())
    assert body == pytest.approx(shape.body_parameters, rel=0.002)  # the rest are norms, rates and convolutions
    assert model.vocabulary * model.hidden == shape.head_parameters
    assert model.state_bytes == shape.state_bytes
    assert (model.q_heads, model.kv_heads, model.dim) == (shape.q_heads, shape.kv_heads, shape.head_dim)
    assert model.groups == shape.full_layers


def test_the_budgets_fit_into_six_minutes() -> None:
    wanted = gpu_parts.parts(toy=False).values()
    together = max(seconds for seconds, beside in wanted if beside)
    assert sum(seconds for seconds, beside in wanted if not beside) + together <= gpu_check.LIMIT_S < 360
