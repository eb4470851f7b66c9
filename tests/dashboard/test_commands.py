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
from serving import TOKEN, free_port

from kvmill.dashboard import theme
from kvmill.dashboard.commands import command, environment
from kvmill.errors import UserError


@pytest.fixture(autouse=True)
def _no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KVMILL_TOKEN", "KVMILL_TOKEN_FILE", "KVMILL_INPUT_ROOTS"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_other_hosts_are_refused_without_a_token_and_the_line_says_what_to_do(host: str):
    with pytest.raises(UserError, match="--token-file FILE or set KVMILL_TOKEN"):
        command(host, free_port())


def test_with_a_token_another_address_is_served(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("KVMILL_TOKEN", TOKEN)
    assert "--server.address=0.0.0.0" in command("0.0.0.0", free_port())


@pytest.mark.parametrize("words", [["--host", "0.0.0.0"], ["--host", "0.0.0.0", "--token-file", "nowhere"]])
def test_the_command_itself_exits_with_2_and_one_line(words: list[str], tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-m", "kvmill", "dashboard", *words, "--store", str(tmp_path / "store")],
        capture_output=True, text=True, cwd=tmp_path, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1


def test_the_token_stays_in_its_file_and_out_of_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = tmp_path / "token"
    file.write_text(TOKEN + "\n")
    given = environment(
        tmp_path / "store", file, ["s3://bucket/traces", str(tmp_path)], {"KVMILL_INPUT_ROOTS": "/data"}
    )
    assert given["KVMILL_TOKEN_FILE"] == str(file)
    assert given["KVMILL_INPUT_ROOTS"] == f"/data:s3://bucket/traces:{tmp_path}"
    assert TOKEN not in str(given)
    monkeypatch.setenv("KVMILL_TOKEN_FILE", str(file))
    assert TOKEN not in str(command("0.0.0.0", free_port()))


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
    assert "--browser.serverAddress=kvmill.example" in command("127.0.0.1", free_port(), "kvmill.example")
    assert {"--server.enableCORS=true", "--server.enableXsrfProtection=true"} <= set(arguments)


def test_what_is_chosen_on_a_page_is_not_red_as_errors_are():
    arguments = command("127.0.0.1", free_port())
    for ground, colour in (("light", theme.BLUE), ("dark", theme.ACCENT_ON_DARK)):
        assert f"--theme.{ground}.primaryColor={colour}" in arguments


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
