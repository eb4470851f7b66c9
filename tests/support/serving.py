"""The API of a store in this process, without Streamlit. Its jobs are recorded and never run."""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from starlette.applications import Starlette
from starlette.testclient import TestClient

from kvmill.dashboard.access import Access
from kvmill.dashboard.jobs import Jobs
from kvmill.dashboard.limits import Buckets
from kvmill.dashboard.service import Service
from kvmill.dashboard.table import served
from kvmill.traces.store import Store

TOKEN = "a-token-of-these-tests"
BEARER = {"Authorization": f"Bearer {TOKEN}"}


def service_of(
    where: Path, token: str | None = TOKEN, roots: tuple[str, ...] = (), most_upload_bytes: int = 1 << 30
) -> Service:
    """A service whose supervisors end at once: jobs stay queued."""
    digest = None if token is None else hashlib.sha256(token.encode()).digest()
    access = Access(store=where.resolve(), roots=roots, token_sha256=digest)
    return Service(Store(where), access, Jobs(where, python="true"), most_upload_bytes)


def application(service: Service, rate_per_s: float = 1e9) -> Starlette:
    """What the server mounts."""
    return Starlette(routes=served(service, Buckets(rate_per_s, rate_per_s)))


def client(service: Service, *, token: bool = True, rate_per_s: float = 1e9) -> TestClient:
    """A client that shows the token, or none."""
    base = "http://127.0.0.1:8501"
    app = application(service, rate_per_s)
    return TestClient(app, base_url=base, headers=BEARER if token else {}, client=("127.0.0.1", 50000))


def free_port() -> int:
    """A port that nobody uses at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def dashboard(store: Path, *words: str, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """`kvmill dashboard` as a process of its own, ready to answer. What it says goes to `STORE.said`."""
    said = store.with_suffix(".said")
    with said.open("ab") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "kvmill", "dashboard", "--port", str(port), "--store", str(store), *words],
            stdout=out,
            stderr=out,
            cwd=store.parent,
            env=os.environ | {"HOME": str(store.parent)},
        )
    try:
        deadline = time.monotonic() + 60
        while not _healthy(port):
            assert process.poll() is None, said.read_text()
            assert time.monotonic() < deadline, said.read_text()
            time.sleep(0.1)
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=5) as answer:
            return answer.status == 200
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


def files_below(where: Path) -> dict[str, int]:
    """Every file of a folder with its time of change: what a request must not alter."""
    return {str(path): path.stat().st_mtime_ns for path in where.rglob("*")} if where.exists() else {}
