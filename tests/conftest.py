"""What every test shares: quiet progress, few threads, no store or hub of the user's, and the shared real data."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# The same examples every time, however busy the machine is: a red test means a change, not luck.
settings.register_profile("kvmill", deadline=None, derandomize=True)
settings.load_profile("kvmill")

os.environ["KVMILL_QUIET"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"
if "PYTEST_XDIST_WORKER" in os.environ:  # it inherits what the process that hands out the tests has set
    os.environ["OMP_NUM_THREADS"] = "1"
else:
    os.environ.setdefault("OMP_NUM_THREADS", "2")
os.environ.pop("KVMILL_STORE", None)
# Triton reads the switch when a kernel is defined. Without a GPU its kernels run in Python, on small grids.
if not Path("/proc/driver/nvidia/version").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(autouse=True)
def own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The default store of every test is its own empty folder. KVMILL_CACHE stays: it holds the model."""
    where = tmp_path / "default-store"
    monkeypatch.setenv("KVMILL_STORE", str(where))
    return where


@pytest.fixture(autouse=True)
def own_main() -> Iterator[None]:
    """A test of a page leaves that page as the main module, which spawned processes would run again."""
    main = sys.modules["__main__"]
    yield
    sys.modules["__main__"] = main


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real traces and logs that are not part of the repository. Skips where they are absent."""
    where = Path(os.environ.get("KVMILL_SHARED_DATA", ROOT.parent / "shared" / "data"))
    if not where.is_dir():
        pytest.skip("the shared data folder is absent (set KVMILL_SHARED_DATA to it)")
    return where


@pytest.fixture(scope="session")
def object_server() -> Iterator[Any]:
    """An S3 server on loopback, with the bucket `bucket`."""
    pytest.importorskip("moto", reason="moto is not installed: pip install 'kvmill[test]'")
    from object_server import ObjectServer

    server = ObjectServer()
    yield server
    server.close()


@pytest.fixture
def bucket(object_server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of an empty store; credentials, cache and manifests seen are this test's alone."""
    from kvmill.traces import object_home

    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in {
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "never-shown",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": str(tmp_path / "none"),
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "none"),
        "AWS_ENDPOINT_URL": object_server.url,
        "KVMILL_CACHE": str(tmp_path / "cache"),
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(object_home, "_seen", {})
    object_server.make_bucket("bucket")
    return f"s3://bucket/{tmp_path.name}"
