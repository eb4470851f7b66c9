"""The server as users start it: pages and API in one process, a token asked for, large uploads in little memory."""

from __future__ import annotations

import http.client
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from serving import BEARER, TOKEN, dashboard, free_port

from kvmill.dashboard import server

MIB = 1 << 20
EXAMPLES = Path(__file__).parents[1] / "traces" / "readers" / "examples"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    (tmp_path / "token").write_text(TOKEN)
    return tmp_path / "store"


def words(store: Path) -> list[str]:
    return ["--host", "0.0.0.0", "--token-file", str(store.parent / "token")]


def ask(port: int, method: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, Any]:
    """Status and answer, an object where it is one."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        text = answer.read()
        return answer.status, json.loads(text) if answer.headers.get_content_type() == "application/json" else text
    finally:
        connection.close()


def test_pages_and_api_are_one_process_and_only_the_api_asks_for_the_token(store: Path):
    port = free_port()
    with dashboard(store, *words(store), port=port):
        assert ask(port, "GET", "/")[0] == 200
        assert ask(port, "GET", "/_stcore/health") == (200, b"ok")
        assert ask(port, "GET", "/healthz")[0] == 200
        for path in ("/api/v1/jobs", "/metrics", "/api/v1/openapi.json", "/api/v1/nope"):
            assert ask(port, "GET", path)[0] == 401
            assert ask(port, "GET", f"{path}?token={TOKEN}")[0] == 401
        status, told = ask(port, "GET", "/api/v1/jobs", **BEARER)
        assert (status, told) == (200, {"total": 0, "jobs": [], "damaged": []})
        foreign = {"Origin": "https://evil.example", "Connection": "Upgrade", "Upgrade": "websocket"}
        foreign |= {"Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA=="}
        assert ask(port, "GET", "/_stcore/stream", **foreign)[0] == 403, "pages of other sites get no session"
    assert TOKEN not in store.with_suffix(".said").read_text()


def test_an_uploaded_file_is_ingested_by_a_job_that_outlives_the_server(store: Path):
    port = free_port()
    with dashboard(store, *words(store), port=port):
        body = (EXAMPLES / "tau-bench.jsonl").read_bytes()
        status, upload = ask(port, "POST", "/api/v1/uploads?name=tau.jsonl", body, **BEARER)
        assert status == 201
        asked = json.dumps({"paths": [upload["path"]]}).encode()
        headers = BEARER | {"Content-Type": "application/json"}
        status, job = ask(port, "POST", "/api/v1/jobs/traces-ingest", asked, **headers)
        assert status == 202
    with dashboard(store, *words(store), port=port):  # a new one
        deadline = time.monotonic() + 60
        while (told := ask(port, "GET", f"/api/v1/jobs/{job['id']}", **BEARER)[1])["state"] in ("queued", "running"):
            assert time.monotonic() < deadline, told
            time.sleep(0.2)
        assert told["state"] == "done", told
        result = ask(port, "GET", f"/api/v1/jobs/{job['id']}/result", **BEARER)[1]
        assert result["accepted"] > 0
        runs = ask(port, "GET", "/api/v1/runs", **BEARER)[1]["runs"]
        assert [run["run"] for run in runs] == [told["run"]] == [result["run"]]
        metrics = ask(port, "GET", "/metrics", **BEARER)[1].decode()
        assert 'kvmill_jobs{state="done"} 1\n' in metrics
        assert 'kvmill_runs{kind="ingest",state="complete"} 1\n' in metrics
        assert 'kvmill_job_last_success_timestamp_seconds{verb="traces ingest"} ' in metrics
        assert 'kvmill_http_requests_total{method="GET",route="/api/v1/runs",status="200"} 1\n' in metrics


def upload_in_pieces(port: int, process: psutil.Process, size: int) -> tuple[int, dict[str, Any], int]:
    """Status, answer, and the most that the server's memory grew, in bytes."""
    before = peak = process.memory_info().rss

    def pieces() -> Iterator[bytes]:
        nonlocal peak
        for sent in range(0, size, MIB):
            yield os.urandom(1024) * 1024
            if sent % (16 * MIB) == 0:
                peak = max(peak, process.memory_info().rss)

    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        headers = BEARER | {"Content-Length": str(size)}
        connection.request("POST", "/api/v1/uploads?name=large.bin", pieces(), headers)
        answer = connection.getresponse()
        told = json.loads(answer.read())
        return answer.status, told, max(peak, process.memory_info().rss) - before
    finally:
        connection.close()


@pytest.mark.parametrize("size", [200 * MIB, pytest.param(1024 * MIB, marks=pytest.mark.slow)])
def test_a_large_upload_costs_less_than_200_mb_of_memory(store: Path, size: int):
    port = free_port()
    with dashboard(store, *words(store), port=port) as process:
        status, told, grown = upload_in_pieces(port, psutil.Process(process.pid), size)
        assert (status, told["bytes"]) == (201, size)
        assert (store / told["path"]).stat().st_size == size
        assert grown < min(200 * MIB, size // 2), f"{grown / MIB:.0f} MiB"


def test_an_upload_that_breaks_off_leaves_nothing_also_when_the_server_is_killed(store: Path):
    port = free_port()

    def half() -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.putrequest("POST", "/api/v1/uploads?name=half.bin")
        for name, value in (BEARER | {"Content-Length": str(64 * MIB)}).items():
            connection.putheader(name, value)
        connection.endheaders()
        connection.send(b"x" * (8 * MIB))
        return connection

    def parts() -> list[Path]:
        return [path for path in store.rglob("*") if path.is_file() and path.stat().st_size >= MIB]

    def wait(for_any: bool) -> None:
        deadline = time.monotonic() + 20
        while bool(parts()) is not for_any:
            assert time.monotonic() < deadline
            time.sleep(0.05)

    with dashboard(store, *words(store), port=port) as process:
        visitor = half()
        wait(for_any=True)
        visitor.close()
        wait(for_any=False)
        half()
        wait(for_any=True)
        process.send_signal(signal.SIGKILL)
        process.wait()
    with dashboard(store, *words(store), port=port):
        assert ask(port, "GET", "/api/v1/uploads", **BEARER) == (200, {"uploads": []})
        assert parts() == [], "a new server clears up"


def test_streamlit_alone_does_not_serve_others_without_a_token_either(store: Path):
    done = subprocess.run(
        [sys.executable, "-m", "streamlit", "run", server.__file__, "--server.address=0.0.0.0",
         f"--server.port={free_port()}", "--server.headless=true"],
        capture_output=True, text=True, cwd=store.parent, check=False, timeout=60,
        env={**os.environ, "HOME": str(store.parent), "KVMILL_STORE": str(store)},
    )  # fmt: skip
    assert done.returncode != 0
    assert "start it with `kvmill dashboard`, and with a token" in done.stderr + done.stdout


def test_no_file_of_the_dashboard_takes_the_name_of_a_package():
    """`streamlit run` puts the folder on the path, before everything that is installed."""
    stems = {path.stem for path in Path(server.__file__).parent.glob("*.py")} - {"__init__"}
    assert {stem for stem in stems if importlib.util.find_spec(stem) is not None} == set()
