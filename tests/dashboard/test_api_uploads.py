"""Uploads over HTTP: whole files under harmless names, or a refusal that leaves nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from serving import client, files_below, service_of
from starlette.testclient import TestClient


@pytest.fixture
def api(tmp_path: Path) -> TestClient:
    return client(service_of(tmp_path / "store", most_upload_bytes=3 << 20))


def in_pieces(size: int) -> Iterator[bytes]:
    """A body whose length is not said beforehand."""
    for _ in range(0, size, 1 << 16):
        yield b"x" * (1 << 16)


def test_a_file_is_kept_as_it_came_listed_and_deleted(api: TestClient, tmp_path: Path):
    body = bytes(range(256)) * 5_000
    answer = api.post("/api/v1/uploads?name=my%20runs%20(1).jsonl", content=body)
    assert answer.status_code == 201
    told = answer.json()
    assert (told["name"], told["bytes"]) == ("my_runs__1_.jsonl", len(body))
    assert (tmp_path / "store" / told["path"]).read_bytes() == body
    assert api.get("/api/v1/uploads").json()["uploads"] == [told]
    assert api.delete(f"/api/v1/uploads/{told['upload']}").json() == {"removed": told["upload"]}
    assert api.get("/api/v1/uploads").json() == {"uploads": []}
    assert api.delete(f"/api/v1/uploads/{told['upload']}").status_code == 404
    assert "kvmill_upload_bytes_total 1280000\n" in api.get("/metrics").text


@pytest.mark.parametrize("content", [b"x" * ((3 << 20) + 1), in_pieces(4 << 20)], ids=["said", "unsaid"])
def test_more_than_the_limit_is_413_and_leaves_nothing(api: TestClient, tmp_path: Path, content: bytes):
    answer = api.post("/api/v1/uploads?name=a.jsonl", content=content)
    assert answer.status_code == 413
    assert "more than 3,145,728 bytes are not taken" in answer.json()["error"]
    assert [path for path in files_below(tmp_path / "store") if Path(path).is_file()] == []


@pytest.mark.parametrize(
    "query",
    ["", "name=", "name=../a", "name=a/b", "name=%2e%2e", "name=.a", "name=a%5Cb", "name=a%00b", "name=a&name=b"],
)
def test_names_that_are_none_are_refused_before_anything_is_read(api: TestClient, tmp_path: Path, query: str):
    answer = api.post(f"/api/v1/uploads?{query}", content=b"x")
    assert answer.status_code == 422
    assert not (tmp_path / "store").exists()


def test_a_full_disk_is_507(api: TestClient, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("kvmill.dashboard.uploads.LEFT_FREE_BYTES", 1 << 60)
    answer = api.post("/api/v1/uploads?name=a", content=b"x")
    assert (answer.status_code, "no room" in answer.json()["error"]) == (507, True)
