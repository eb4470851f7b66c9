"""Uploads: whole or not at all, bounded, and under a name that leads nowhere."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvmill.dashboard import uploaded, uploads
from kvmill.dashboard.uploaded import UnknownUpload
from kvmill.dashboard.uploads import NoRoom, TooLarge, Upload, safe_name
from kvmill.errors import UserError


def receive(folder: Path, name: str, pieces: list[bytes], most_bytes: int = 1 << 20) -> uploaded.Uploaded:
    return uploads.receive(folder, name, pieces, most_bytes)


def test_an_upload_is_there_whole_with_its_size_and_digest(tmp_path: Path):
    found = receive(tmp_path / "uploads", "runs.jsonl", [b"a" * 10, b"b" * 7])
    path = tmp_path / found.path
    assert path.read_bytes() == b"a" * 10 + b"b" * 7
    assert (found.name, found.bytes, found.sha256) == ("runs.jsonl", 17, hashlib.sha256(path.read_bytes()).hexdigest())
    listed = uploaded.uploads(tmp_path / "uploads")
    assert [(one.upload, one.path, one.bytes) for one in listed] == [(found.upload, found.path, 17)]


def test_an_upload_in_progress_is_not_listed_and_one_that_breaks_off_leaves_nothing(tmp_path: Path):
    upload = Upload(tmp_path, "a.jsonl", 10)
    upload.write(b"x")
    assert uploaded.uploads(tmp_path) == []
    upload.abort()
    assert list(tmp_path.iterdir()) == []


def test_more_than_the_limit_is_refused_however_it_comes(tmp_path: Path):
    with pytest.raises(TooLarge, match="more than 10 bytes"):
        Upload(tmp_path, "a", most_bytes=10, expected_bytes=11)
    with pytest.raises(TooLarge):
        receive(tmp_path, "a", [b"x" * 6, b"x" * 5], most_bytes=10)
    assert list(tmp_path.iterdir()) == []
    assert receive(tmp_path, "a", [b"x" * 6, b"x" * 4], most_bytes=10).bytes == 10


def test_a_full_disk_is_said_before_it_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(uploads, "LEFT_FREE_BYTES", 1 << 60)
    with pytest.raises(NoRoom, match="no room"):
        Upload(tmp_path, "a", 10, expected_bytes=1)
    with pytest.raises(NoRoom):
        receive(tmp_path, "a", [b"x"])


SCRIPT = """
import sys, time
from pathlib import Path
from kvmill.dashboard.uploads import Upload
upload = Upload(Path(sys.argv[1]), "a.jsonl", 10**6)
upload.write(b"x" * 100_000)
print("half", flush=True)
time.sleep(60)
"""


def test_a_process_killed_in_the_middle_leaves_no_upload_and_the_next_one_clears_up(tmp_path: Path):
    process = subprocess.Popen([sys.executable, "-c", SCRIPT, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "half\n"
    uploads.sweep(tmp_path)
    assert len(list(tmp_path.glob(".*.part"))) == 1, "somebody still writes it"
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert uploaded.uploads(tmp_path) == []
    receive(tmp_path, "b.jsonl", [b"y"])
    assert list(tmp_path.glob(".*")) == []
    assert [found.name for found in uploaded.uploads(tmp_path)] == ["b.jsonl"]


def test_one_killed_when_it_was_whole_but_not_yet_there_is_swept_too(tmp_path: Path):
    upload = "20260101-000000-000000-abcdef"
    (tmp_path / f".{upload}").mkdir()
    (tmp_path / f".{upload}" / "a.jsonl").write_bytes(b"unredacted")
    (tmp_path / f"{upload}.json").write_text("{}")
    uploads.sweep(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["../a", "a/b", "/etc/passwd", "..", ".", "", "  ", "a\\b", "a\0b"])
def test_a_path_in_place_of_a_name_is_refused(name: str, tmp_path: Path):
    with pytest.raises(UserError, match="without folders"):
        receive(tmp_path / "uploads", name, [b"x"])
    assert not (tmp_path / "uploads").exists()


@pytest.mark.parametrize(
    ("given_name", "kept"),
    [
        ("runs.jsonl.gz", "runs.jsonl.gz"),
        ("my runs (1).jsonl", "my_runs__1_.jsonl"),
        (".hidden", "hidden"),
        ("-rf", "rf"),
        ("$(id).json", "__id_.json"),
        ("läufe\n.csv", "l_ufe_.csv"),
        ("...", "upload"),
    ],
)
def test_names_keep_what_is_harmless(given_name: str, kept: str):
    assert safe_name(given_name) == kept


@given(st.text(max_size=300))
def test_any_name_becomes_one_harmless_file_name_or_is_refused(name: str):
    try:
        kept = safe_name(name)
    except UserError:
        return
    assert 0 < len(kept) <= 120
    assert kept[0] not in ".-"
    assert all(c.isascii() and (c.isalnum() or c in "._-") for c in kept)


@pytest.mark.parametrize("upload", ["..", "", "../store", ".x", "20260101-000000-000000-abcdef"])
def test_only_uploads_can_be_removed(upload: str, tmp_path: Path):
    folder = tmp_path / "uploads"
    kept = receive(folder, "a", [b"x"])
    with pytest.raises(UnknownUpload):
        uploaded.remove(folder, upload)
    assert (tmp_path / kept.path).exists()
    uploaded.remove(folder, kept.upload)
    assert list(folder.iterdir()) == []


def test_two_uploads_of_one_name_are_two_files(tmp_path: Path):
    first, second = (receive(tmp_path / "uploads", "a.csv", [body]) for body in (b"1", b"2"))
    assert [(tmp_path / found.path).read_bytes() for found in (first, second)] == [b"1", b"2"]
    os.utime(tmp_path / first.path, (time.time(), time.time()))
    assert [found.upload for found in uploaded.uploads(tmp_path / "uploads")] == [second.upload, first.upload]


def test_the_limit_is_a_setting(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(uploads.VARIABLE, raising=False)
    assert uploads.most_bytes() == 20 << 30
    monkeypatch.setenv(uploads.VARIABLE, "0.5")
    assert uploads.most_bytes() == 1 << 29
    for wrong in ("0", "-1", "much", "nan", "inf", ""):
        monkeypatch.setenv(uploads.VARIABLE, wrong)
        with pytest.raises(UserError, match="KVMILL_MAX_UPLOAD_GIB"):
            uploads.most_bytes()
