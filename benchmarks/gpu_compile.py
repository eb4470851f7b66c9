"""Compile the Triton kernels for a GPU that is not here: `kvmill bench gpu_compile` needs triton, and no GPU.

The wrappers run as they would on an H200, on CPU tensors, and every kernel they launch is compiled by Triton and ptxas
instead: what does not compile, wants more shared memory than there is, or spills registers is found without a GPU.
Whether it computes the right thing is for the interpreter, and for `gpu_check`.

The stand-in for Triton's driver uses parts of Triton that are not public: seen to work with 3.6 and 3.9.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

SHARED_BYTES = 232_448
"""Of one block on Hopper (compute capability 9.0)."""
Row = dict[str, Any]


class _Utils:
    @staticmethod
    def get_device_properties(_: int) -> dict[str, int]:
        return {"max_shared_mem": SHARED_BYTES, "multiprocessor_count": 132, "warpSize": 32, "max_num_regs": 65_536}


class _Absent:
    """What Triton asks a driver before it compiles, answered for an H200."""

    utils = _Utils

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int | None = None) -> int:
        return 0


def compiled(ops: Sequence[str], *, full: bool) -> Iterator[Row]:
    """A row per kernel that the cases of these operations compile, and one per case that stops on the way.

    Must be the first in its process to import the kernels: Triton decides then whether it interprets.
    """
    os.environ.pop("TRITON_INTERPRET", None)
    import torch
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction

    from kvmill.benchmarks.kernel_cases import MODULES, Draw, new_memory, operation
    from kvmill.benchmarks.kernel_problems import cases

    driver.set_active(_Absent())  # type: ignore[arg-type]
    seen: set[str] = set()
    rows: list[Row] = []
    compile_or_launch = JITFunction.run

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        start = time.perf_counter()
        kernel: Any = compile_or_launch(self, *args, grid=grid, warmup=True, **options)
        if kernel.hash not in seen:
            seen.add(kernel.hash)
            rows.append({"kernel": self.fn.__name__, **_resources(kernel), "seconds": time.perf_counter() - start})
        return kernel

    public = {MODULES[op]: import_module(f"kvmill.kernels.{MODULES[op]}") for op in ops}
    choices = {name: module.choose for name, module in public.items()}
    JITFunction.run = compile_only  # type: ignore[method-assign]
    try:
        for module in public.values():
            vars(module)["choose"] = lambda *_: "triton"  # tensors of this CPU stand for the GPU's
        for op in ops:
            for case in cases(op, full=full):
                error = None
                try:
                    # Nothing is computed: zeros take the place of results that later steps read.
                    with new_memory(torch.Tensor.zero_):
                        case.problem(Draw(0, case.dtype, torch.device("cpu")), operation(op))
                except Exception as raised:
                    error = f"{type(raised).__name__}: {(str(raised).strip().splitlines() or [''])[-1][:300]}"
                told = {"op": op, "case": case.label}
                yield from ({**told, **row, "error": None} for row in rows)
                rows.clear()
                if error is not None:
                    yield {**told, "kernel": None, "error": error}
    finally:
        JITFunction.run = compile_or_launch  # type: ignore[method-assign]
        for name, module in public.items():
            vars(module)["choose"] = choices[name]


def _resources(kernel: Any) -> Row:
    """Shared bytes and warps as compiled; registers and bytes of stack (spills) as ptxas assigned them."""
    from triton import knobs

    found: Row = {"shared_bytes": kernel.metadata.shared, "warps": kernel.metadata.num_warps}
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(kernel.asm["cubin"])
        command = [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    used = {name: int(number) for name, number in re.findall(r"(REG|STACK):(\d+)", said)}
    return found | {"registers": used["REG"], "stack_bytes": used["STACK"]}


def problems(rows: Sequence[Row]) -> list[str]:
    """What would fail on the GPU, a line each."""
    out = [f"{row['op']}, {row['case']}: {row['error']}" for row in rows if row["error"]]
    for row in rows:
        if not row["error"] and row["shared_bytes"] > SHARED_BYTES:
            wants = f"{row['shared_bytes']:,} bytes of shared memory, there are {SHARED_BYTES:,}"
            out.append(f"{row['op']}, {row['case']}: {row['kernel']} wants {wants}")
    return out


def main() -> None:
    """The command. Exit code 6 where something would fail."""
    parser = argparse.ArgumentParser(prog="kvmill bench gpu_compile", description=__doc__)
    parser.add_argument("--op", action="append", help="this operation only (may be given again)")
    parser.add_argument("--quick", action="store_true", help="a few cases of each, not all shapes")
    parser.add_argument("--json", action="store_true", help="all rows as one JSON object")
    asked = parser.parse_args()
    from kvmill.benchmarks.kernel_cases import MODULES
    from kvmill.console import note, table
    from kvmill.errors import unknown

    for op in asked.op or ():
        if op not in MODULES:
            raise unknown("operation", op, MODULES, "--op")
    rows = list(compiled(asked.op or list(MODULES), full=not asked.quick))
    wrong = problems(rows)
    if asked.json:
        print(json.dumps({"rows": rows, "problems": wrong}))
    else:
        columns = ("op", "kernel", "case", "shared_bytes", "warps", "registers", "stack_bytes", "seconds")
        print(table([row for row in rows if not row["error"]], dict(zip(columns, columns, strict=True))))
    for line in wrong:
        note(f"problem: {line}")
    sys.exit(6 if wrong else 0)


if __name__ == "__main__":
    main()
