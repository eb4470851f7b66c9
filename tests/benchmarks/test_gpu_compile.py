"""The kernels compile for a GPU that is not here, in a process in which Triton does not interpret."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvmill.benchmarks.gpu_compile import SHARED_BYTES, problems

pytest.importorskip("triton", reason="triton is not installed")


def compiled(cache: Path, *flags: str) -> dict[str, Any]:
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"TRITON_CACHE_DIR": str(cache)}
    command = [sys.executable, "-m", "kvmill.benchmarks.gpu_compile", "--json", *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env, cwd=cache)
    assert done.returncode in (0, 6), done.stderr[-2000:]
    return json.loads(done.stdout)


def test_kernels_compile_for_an_h200_without_one(tmp_path: Path) -> None:
    found = compiled(tmp_path, "--quick", "--op", "decode_attention", "--op", "log_totals")
    assert found["problems"] == []
    assert {row["op"] for row in found["rows"]} == {"decode_attention", "log_totals"}
    for row in found["rows"]:
        assert row["error"] is None
        assert 0 < row["registers"] <= 255
        assert row["shared_bytes"] <= SHARED_BYTES


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_every_kernel_of_every_case_compiles_and_fits(tmp_path: Path) -> None:
    assert compiled(tmp_path)["problems"] == []


def test_what_does_not_compile_or_fit_is_told() -> None:
    told = {"op": "x", "case": "n 9"}
    rows = [
        {**told, "kernel": None, "error": "CompilationError: no"},
        {**told, "kernel": "k", "error": None, "shared_bytes": SHARED_BYTES + 1},
        {**told, "kernel": "k", "error": None, "shared_bytes": SHARED_BYTES},
    ]
    first, second = problems(rows)
    assert first == "x, n 9: CompilationError: no"
    assert "k wants 232,449 bytes of shared memory, there are 232,448" in second
