"""A stream of any length is ingested in the same memory, also through a pipe."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kvmill.benchmarks import agent_log
from kvmill.traces.store import Store

ROOT = Path(__file__).resolve().parents[2]
MEGABYTES, MOST_BYTES = 300, 600 << 20


def held_at_most(pid: int) -> int:
    """Bytes that a process has held at its peak, since it began to run its own program.

    What wait4 tells of a child includes the memory of the parent that started it.
    """
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    return int(found.group(1)) * 1024 if found else 0


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system does not tell what a process holds")
def test_three_hundred_megabytes_through_a_pipe_take_little_memory(tmp_path: Path) -> None:
    store, answer = Store.open(tmp_path / "store"), tmp_path / "answer"
    command = [sys.executable, "-m", "kvmill", "traces", "ingest", "-", "--no-redact", "--json"]
    with answer.open("w") as out:
        child = subprocess.Popen(
            [*command, "--store", str(store.path)], cwd=ROOT, stdin=subprocess.PIPE, stdout=out, stderr=subprocess.PIPE
        )
    assert child.stdin is not None
    sent = 0
    with child.stdin as pipe:
        for line in agent_log.runs(MEGABYTES):
            sent += pipe.write(line) > 0
    most = 0
    while child.poll() is None:
        most = max(most, held_at_most(child.pid))
        time.sleep(0.02)
    assert child.returncode == 0
    report = json.loads(answer.read_text())
    assert (report["accepted"], report["rejected"], report["duplicates"]) == (sent, 0, 0)
    assert store.query("select count(*) n from trajectories")["n"].to_pylist() == [sent]
    assert 0 < most < MOST_BYTES
