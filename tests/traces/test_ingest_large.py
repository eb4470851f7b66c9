"""A stream of any length is ingested in the same memory, also through a pipe."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvmill.benchmarks import agent_log
from kvmill.traces.store import Store

ROOT = Path(__file__).resolve().parents[2]
MEGABYTES, MOST_BYTES = 300, 600 << 20


@pytest.mark.skipif(not hasattr(os, "wait4"), reason="the system does not tell how much memory a child had")
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
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    assert child.returncode == 0
    report = json.loads(answer.read_text())
    assert (report["accepted"], report["rejected"], report["duplicates"]) == (sent, 0, 0)
    assert store.query("select count(*) n from trajectories")["n"].to_pylist() == [sent]
    assert used.ru_maxrss * (1 if sys.platform == "darwin" else 1024) < MOST_BYTES
