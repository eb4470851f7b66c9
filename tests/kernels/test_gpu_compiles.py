"""What the interpreter cannot tell: that the kernels compile, and fit, on the GPU they are for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "support" / "compiling.py"
SHARED_BYTES = 227 * 1024
"""What one program may take of a multiprocessor of compute capability 9.0."""


def test_every_kernel_compiles_for_an_h200() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, str(SCRIPT)], env=environment, capture_output=True, text=True, check=False, timeout=240
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    kernels = {row["kernel"] for row in found}
    assert kernels == {f"_{name}_kernel" for name in ("gather", "forward", "merge", "nearest", "rotate", "topk")}
    assert max(row["shared_bytes"] for row in found) <= SHARED_BYTES
    # Rows of 128 half-precision numbers move 16 bytes at a time.
    assert all(row["wide_loads"] for row in found if row["kernel"] in ("_gather_kernel", "_forward_kernel"))
