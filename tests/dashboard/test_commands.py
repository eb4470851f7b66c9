"""`kvmill dashboard` serves this machine only, with this interpreter, and says what is wrong before it starts."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from kvmill.dashboard.commands import command
from kvmill.errors import UserError


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_other_hosts_are_refused_because_there_is_no_login(host: str):
    with pytest.raises(UserError, match="no login yet"):
        command(host, free_port())


def test_a_taken_port_is_said_before_streamlit_starts():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(UserError, match="choose another"):
            command("127.0.0.1", taken.getsockname()[1])


def test_the_server_is_this_interpreter_without_usage_statistics():
    arguments = command("127.0.0.1", free_port())
    assert arguments[:4] == [sys.executable, "-m", "streamlit", "run"]
    assert Path(arguments[4]).is_file()
    assert "--browser.gatherUsageStats=false" in arguments
    assert "--server.address=127.0.0.1" in arguments


def test_it_serves_and_one_signal_ends_it(tmp_path: Path):
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "kvmill", "dashboard", "--port", str(port), "--store", str(tmp_path / "store")],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
        env=os.environ | {"HOME": str(tmp_path)},
    )
    try:
        health = f"http://127.0.0.1:{port}/_stcore/health"
        deadline = time.monotonic() + 30
        while True:
            try:
                with urllib.request.urlopen(health, timeout=2) as response:
                    assert response.read() == b"ok"
                break
            except (urllib.error.URLError, ConnectionError):
                assert process.poll() is None, process.stderr.read() if process.stderr else ""
                assert time.monotonic() < deadline, "the server does not answer"
                time.sleep(0.2)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=15)
    with pytest.raises((urllib.error.URLError, ConnectionError)):
        urllib.request.urlopen(health, timeout=1)
