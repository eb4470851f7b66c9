"""Answers on stdout as strict JSON or text; failures as one line and an exit code."""

from __future__ import annotations

import errno
import io
import json
from dataclasses import dataclass
from decimal import Decimal

import numpy as np
import pytest
import typer

from kvmill import console
from kvmill.errors import Incomplete, InputError, NoAnswer, UserError


@dataclass
class Point:
    x: float
    inner: tuple[float, ...]


def test_plain_turns_nan_and_infinity_into_null_at_any_depth():
    value = {"a": float("nan"), "b": [Point(float("inf"), (1.0, float("-inf")))], 3: {1}}
    assert console.plain(value) == {"a": None, "b": [{"x": None, "inner": [1.0, None]}], "3": [1]}


def test_plain_reads_numpy_scalars_and_keeps_bools():
    out = console.plain([np.float64(0.5), np.int64(7), np.bool_(True), np.float32("nan"), True, Decimal("0.2")])
    assert out == [0.5, 7, True, None, True, "0.2"]
    assert isinstance(out[2], bool)


def test_json_answer_is_one_strict_object(capsys):
    console.answer({"kl": float("nan"), "n": 3}, True, lambda: "never called")
    out = capsys.readouterr()
    assert json.loads(out.out, parse_constant=pytest.fail) == {"kl": None, "n": 3}
    assert out.err == ""


def test_text_answer_ends_with_one_newline(capsys):
    console.answer({}, False, lambda: "11 GPUs\n\n")
    assert capsys.readouterr().out == "11 GPUs\n"


@pytest.mark.parametrize(
    ("error", "code", "label"),
    [
        (UserError("bad\n flag"), 2, "error: bad flag"),
        (InputError("nothing accepted"), 3, "error: nothing accepted"),
        (NoAnswer("no fleet does", "KV"), 4, "no answer: no fleet does"),
        (Incomplete("2 cells failed"), 6, "incomplete: 2 cells failed"),
    ],
)
def test_guarded_prints_one_line_and_exits_with_the_family_code(capsys, error, code, label):
    @console.guarded
    def command() -> None:
        raise error

    with pytest.raises(typer.Exit) as caught:
        command()
    out = capsys.readouterr()
    assert caught.value.exit_code == code
    assert out.err == label + "\n"
    assert out.out == ""


def test_escape_sequences_reach_no_terminal(capsys, monkeypatch):
    monkeypatch.delenv("KVMILL_QUIET", raising=False)
    console.note("no such file: a\x1b]0;b\x07\u202ec")
    console.Progress("reading", 1).step(detail="a\x1b[31m")
    console.answer({}, False, lambda: "family \x1b[31m")
    out, err = capsys.readouterr()
    assert err.startswith("no such file: a\\x1b]0;b\\x07\\u202ec\n")
    assert "\x1b" not in out + err


def test_guarded_lets_our_bugs_through_with_their_traceback():
    @console.guarded
    def command() -> None:
        raise ZeroDivisionError("ours")

    with pytest.raises(ZeroDivisionError):
        command()


def test_guarded_says_full_disks_and_missing_permissions_in_one_line(capsys):
    @console.guarded
    def command(error: OSError) -> None:
        raise error

    with pytest.raises(typer.Exit) as caught:
        command(OSError(errno.ENOSPC, "No space left on device", "store/a.parquet"))
    assert caught.value.exit_code == 2
    err = capsys.readouterr().err
    assert err == "error: store/a.parquet: No space left on device; check permissions and free space\n"
    with pytest.raises(IsADirectoryError):
        command(IsADirectoryError(errno.EISDIR, "Is a directory", "x"))


def test_guarded_keeps_the_signature_typer_reads():
    @console.guarded
    def command(keep: float = 0.2) -> float:
        return keep

    assert command(keep=0.4) == 0.4
    assert command.__wrapped__.__annotations__["keep"] in (float, "float")


def test_table_aligns_numbers_right_and_never_cuts():
    rows = [{"p": "te(proxy=assistant,delay=1,keep=0.2)", "n": 5}, {"p": "full", "n": None}]
    lines = console.table(rows, {"p": "policy", "n": "GPUs"}).splitlines()
    assert lines[0].split() == ["policy", "GPUs"]
    assert lines[2] == "te(proxy=assistant,delay=1,keep=0.2)     5"
    assert lines[3] == "full".ljust(36) + "     –"


def test_a_size_keeps_three_digits_in_the_unit_that_fits():
    sizes = (0, 999, 1_000, 4_560_000, 540_000_000, 999_600_000, 1_440_000_000, 141e9, 2.5e12)
    told = ["0 bytes", "999 bytes", "1 kB", "4.56 MB", "540 MB", "1 GB", "1.44 GB", "141 GB", "2.5 TB"]
    assert [console.size(count) for count in sizes] == told


def test_duration_reads_as_people_say_it():
    assert [console.duration(s) for s in (0, 59.4, 60, 3661)] == ["0s", "59s", "1m00s", "61m01s"]


def test_progress_is_silent_when_quiet_and_otherwise_ends_with_the_total(capsys, monkeypatch):
    console.Progress("replay", 2, "cells").step(2)
    assert capsys.readouterr().err == ""
    monkeypatch.delenv("KVMILL_QUIET")
    progress = console.Progress("replay", 2, "cells")
    progress.step()
    progress.step(detail="registry-00")
    err = capsys.readouterr().err
    assert err.count("\n") == 1, "off a terminal, only every 30 s and at the end"
    assert err.startswith("replay 2/2 cells")
    assert "registry-00" in err


def test_progress_without_a_known_total_counts_but_does_not_flood(capsys, monkeypatch):
    monkeypatch.delenv("KVMILL_QUIET")
    progress = console.Progress("plan", 0, "simulations")
    progress.step()
    assert capsys.readouterr().err == "", "off a terminal, only every 30 s"
    monkeypatch.setattr(console, "LOG_EVERY_S", 0.0)
    progress.step(detail="full on 9")
    err = capsys.readouterr().err
    assert err.startswith("plan 2 simulations, 0s spent")
    assert "to go" not in err
    assert err.endswith("full on 9\n")


def test_progress_for_programs_is_one_object_a_line_at_most_one_a_second(capsys, monkeypatch):
    monkeypatch.delenv("KVMILL_QUIET")
    monkeypatch.setenv("KVMILL_PROGRESS", "json")
    progress = console.Progress("replay", 400, "cells")
    for number in range(400):
        progress.step(detail=f"registry-{number}")
    first, last = [json.loads(line)["progress"] for line in capsys.readouterr().err.splitlines()]
    assert first == {"label": "replay", "done": 0, "total": 400, "unit": "cells", "detail": "", "eta_s": None}
    assert last == first | {"done": 400, "detail": "registry-399", "eta_s": 0.0}


def test_progress_for_programs_guesses_no_time_without_a_total(capsys, monkeypatch):
    monkeypatch.delenv("KVMILL_QUIET")
    monkeypatch.setenv("KVMILL_PROGRESS", "json")
    monkeypatch.setattr(console, "PROGRAMS_EVERY_S", 0.0)
    console.Progress("ingest", 0, "MB").step(3)
    told = json.loads(capsys.readouterr().err.splitlines()[-1])["progress"]
    assert (told["done"], told["total"], told["eta_s"]) == (3, None, None)


def test_on_a_terminal_progress_shows_at_once_and_ends_its_line_when_done(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.delenv("KVMILL_QUIET")
    monkeypatch.setattr("sys.stderr", shown := Terminal())
    progress = console.Progress("replay", 2, "trajectories")
    assert shown.getvalue() == "\r\x1b[2Kreplay 0/2 trajectories, 0s spent"
    progress.step()
    assert ", 0s to go" in shown.getvalue()
    progress.step()
    assert shown.getvalue().endswith("replay 2/2 trajectories, 0s spent\n")


def test_what_has_begun_is_said_unless_quiet(capsys, monkeypatch):
    console.begun("loading")
    assert capsys.readouterr().err == ""
    monkeypatch.delenv("KVMILL_QUIET")
    console.begun("loading")
    assert capsys.readouterr().err == "loading\n"


def test_an_encoding_without_a_sign_has_it_spelled_out(monkeypatch):
    raw = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(raw, encoding="ascii"))
    console.lenient_streams()
    console.answer({}, False, lambda: "p95 TTFT \u2264 2 s")
    assert raw.getvalue() == b"p95 TTFT \\u2264 2 s\n"
