"""Whether the tests of an operation pass: without that, no speed-up is shown."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from xml.etree import ElementTree

from .kernel_cases import MODULES

ROOT = Path(__file__).resolve().parents[1]
_SEEN: dict[str, dict[str, str | None]] = {}


def verified(ops: Iterable[str], device: str, *, quick: bool = False, root: Path = ROOT) -> dict[str, str | None]:
    """For each operation what is wrong with it: None where its tests pass, in one run of pytest.

    On a CPU without the tests of the Triton forms, which are not timed there; `quick` without those of the reference
    itself. The outcome is kept for the life of the process as long as no source file changes.
    """
    ending = "_impls.py" if quick else "*.py"
    files = {op: sorted((root / "tests" / "kernels").glob(f"test_*{MODULES[op]}{ending}")) for op in ops}
    if device == "cpu":
        files = {op: [file for file in found if "gpu" not in file.stem] for op, found in files.items()}
    wanted = sorted({file for found in files.values() for file in found})
    key = f"{device} {_source(root, wanted)}"
    if key not in _SEEN:
        _SEEN[key] = _run(wanted, device, root)
    return {op: _worst([_SEEN[key].get(file.stem, "its tests did not run") for file in files[op]]) for op in files}


def _worst(outcomes: list[str | None]) -> str | None:
    if not outcomes:
        return "its tests are not here: they come with a checkout"
    return next((outcome for outcome in outcomes if outcome), None)


def _run(files: list[Path], device: str, root: Path) -> dict[str, str | None]:
    """Test file → None if all of its tests pass, else the first that does not."""
    if not files:
        return {}
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
        command += [] if device == "cuda" else ["-k", "not triton and not gpu"]
        done = subprocess.run(
            [*command, *map(str, files)],
            cwd=root,
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "KVMILL_QUIET": "1"},
        )
        if not report.is_file():
            said = (done.stdout + done.stderr).strip().splitlines()
            return {file.stem: f"pytest failed: {said[-1] if said else done.returncode}" for file in files}
        return _read(report)


def _read(report: Path) -> dict[str, str | None]:
    out: dict[str, str | None] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        stem = case.get("classname", "").split(".")[-1]
        bad = case.find("failure") is not None or case.find("error") is not None
        out[stem] = out.get(stem) or (f"{case.get('name')} fails" if bad else None)
    return out


def _source(root: Path, tests: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for file in [*sorted((root / "kernels").rglob("*.py")), *tests]:
        digest.update(file.read_bytes())
    return digest.hexdigest()
