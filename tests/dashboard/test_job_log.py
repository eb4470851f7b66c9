"""A job's log keeps its beginning and its end, and a bound on its size, however much its command says."""

from __future__ import annotations

import io
import os
import re
from pathlib import Path

import pytest

from kvmill.dashboard import job as jobs_files
from kvmill.dashboard.job import ASKED, LOG, STATUS, Asked, Status
from kvmill.dashboard.job_log import MOST_BYTES, Log
from kvmill.dashboard.worker import Supervisor

MOST, KEPT = 4000, 1000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.txt"


def test_a_short_log_is_kept_as_it_was_said(path: Path):
    path.write_bytes(b"before\n")
    with Log(path, MOST, KEPT) as log:
        log.write(b"one\n")
        log.write(b"two\n")
    assert path.read_bytes() == b"before\none\ntwo\n"


def test_a_long_one_keeps_its_beginning_its_end_and_how_much_is_gone(path: Path):
    lines = [b"line %05d\n" % n for n in range(5000)]
    largest = 0
    with Log(path, MOST, KEPT) as log:
        for line in lines:
            log.write(line)
            largest = max(largest, path.stat().st_size)
    assert largest <= MOST
    text = path.read_bytes()
    head, gone, tail = re.split(rb"\n\[(\d+) bytes of the log were left out here\]\n", text)
    assert b"".join(lines).startswith(head)
    assert b"".join(lines).endswith(tail)
    assert len(head) > 0.9 * KEPT
    assert len(tail) > 0.9 * KEPT
    assert len(head) + int(gone) + len(tail) == len(b"".join(lines))
    assert tail.startswith(b"line "), "whole lines"


def test_one_endless_line_is_bounded_too(path: Path):
    with Log(path, MOST, KEPT) as log:
        for _ in range(100):
            log.write(b"x" * 500)
    assert path.stat().st_size <= MOST + 500
    assert path.read_bytes().count(b"left out here") == 1


def test_others_that_append_to_the_file_still_do(path: Path):
    path.touch()
    other = os.open(path, os.O_WRONLY | os.O_APPEND)
    with Log(path, MOST, KEPT) as log:
        for n in range(1000):
            log.write(b"%06d\n" % n)
        os.write(other, b"the supervisor's last words\n")
        log.write(b"and the command's\n")
    os.close(other)
    assert path.read_bytes().endswith(b"the supervisor's last words\nand the command's\n")


def test_a_supervisor_bounds_what_its_command_says(tmp_path: Path):
    when = jobs_files.now()
    jobs_files.write(tmp_path / ASKED, Asked("x", "validate", (), "ann", when, "heavy", "/"))
    jobs_files.write(tmp_path / STATUS, Status("queued", when))
    said = b"a word that is said again and again\n" * (2 * MOST_BYTES // 36)
    supervisor = Supervisor(tmp_path)
    supervisor._listen(io.BytesIO(said + b'{"progress": {"done": 3}}\nthe end\n'))
    assert (tmp_path / LOG).stat().st_size < MOST_BYTES
    assert (supervisor.last_words, supervisor.progress) == ("the end", {"done": 3})
