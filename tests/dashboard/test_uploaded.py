"""What came in is deleted once it was read, and what is known of it stays: name, size, and what became of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from waiting import end_all, ended

from kvmill.dashboard import uploaded, uploads
from kvmill.dashboard.jobs import Jobs

EXAMPLE = Path(__file__).parents[1] / "traces" / "readers" / "examples" / "tau-bench.jsonl"


@pytest.fixture(autouse=True)
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Jobs]:
    monkeypatch.delenv(uploaded.KEEP, raising=False)
    made = Jobs(tmp_path / "store")
    yield made
    end_all(made)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "store" / "uploads"


def came(folder: Path, content: bytes, name: str = "runs.jsonl") -> uploaded.Uploaded:
    return uploads.receive(folder, name, [content], 1 << 20)


def answer(found: uploaded.Uploaded, **changes: Any) -> dict[str, Any]:
    entry = {"path": f"/somewhere/{found.path}", "format": "tau-bench", "accepted": 2, "rejected": 1, "error": None}
    return {"run": "ingest-1", "files": [entry | changes]}


def note(folder: Path, found: uploaded.Uploaded, told: dict[str, Any] | None) -> uploaded.Uploaded:
    uploaded.note_read(folder, ["--redact", "--", found.path], folder.parent, "job-1", told)
    return next(one for one in uploaded.uploads(folder) if one.upload == found.upload)


def test_an_ingest_job_deletes_the_file_it_read_and_leaves_one_that_it_could_not_read(jobs: Jobs, folder: Path):
    good, bad = came(folder, EXAMPLE.read_bytes()), came(folder, b"nothing that anybody knows", "notes.txt")
    job = ended(jobs, jobs.submit("traces ingest", ["--", good.path, bad.path], by="ann", cwd=folder.parent).id)
    assert job.status.run, jobs.log(job.id)
    other, read = uploaded.uploads(folder)
    assert (read.name, read.bytes, read.sha256, read.kept) == ("runs.jsonl", good.bytes, good.sha256, False)
    assert {"job": job.id, "run": job.status.run, "format": "tau-bench", "accepted": 1} == {
        key: (read.read or {})[key] for key in ("job", "run", "format", "accepted")
    }
    assert not (folder / good.upload).exists()
    assert (other.kept, bool((other.read or {})["error"])) == (True, True)
    assert (folder.parent / bad.path).exists()


def test_a_setting_keeps_what_was_read(folder: Path, monkeypatch: pytest.MonkeyPatch):
    found = came(folder, b"x")
    monkeypatch.setenv(uploaded.KEEP, "1")
    read = note(folder, found, answer(found))
    assert (read.kept, (read.read or {})["accepted"]) == (True, 2)
    assert (folder.parent / found.path).read_bytes() == b"x"
    monkeypatch.setenv(uploaded.KEEP, "0")
    assert not note(folder, found, answer(found)).kept


@pytest.mark.parametrize(
    ("changes", "kept"),
    [
        ({}, False),
        ({"accepted": 0, "duplicates": 3}, False),
        ({"accepted": 0, "part_of": "b.jsonl"}, False),
        ({"accepted": 0}, True),
        ({"error": "torn in the middle"}, True),
    ],
)
def test_only_what_records_were_taken_of_is_deleted(folder: Path, changes: dict[str, Any], kept: bool):
    found = came(folder, b"x")
    assert note(folder, found, answer(found, **changes)).kept == kept


def test_a_job_without_an_answer_deletes_nothing(folder: Path):
    found = came(folder, b"x")
    read = note(folder, found, None)
    assert (read.kept, (read.read or {})["job"], (read.read or {})["run"]) == (True, "job-1", None)


def test_only_what_lies_in_the_uploads_is_one(folder: Path):
    found = came(folder, b"x")
    words = ["--", found.path, "../store/uploads", "samples", "/etc/passwd", f"uploads/{found.upload}/../../../x"]
    assert uploaded.of_words(folder, words, folder.parent) == [found.upload]


def test_uploads_of_before_there_were_records_are_listed(folder: Path):
    found = came(folder, b"xyz")
    (folder / f"{found.upload}.json").unlink()
    (listed,) = uploaded.uploads(folder)
    assert (listed.name, listed.bytes, listed.sha256, listed.kept) == ("runs.jsonl", 3, None, True)
