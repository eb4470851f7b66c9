"""The token, the places that may be read, the audit log, and CSV that spreadsheets do not obey."""

from __future__ import annotations

import csv
import io
import json
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from serving import TOKEN, service_of

from kvmill.dashboard import access
from kvmill.dashboard.access import Access, Refused, Visitor
from kvmill.errors import UserError

GUEST, KNOWN = Visitor("guest", verified=False), Visitor("ann", verified=True)


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (access.TOKEN, access.TOKEN_FILE, access.ROOTS):
        monkeypatch.delenv(name, raising=False)


def test_without_a_token_nobody_has_to_show_one(tmp_path: Path):
    free = Access.from_environment(tmp_path)
    assert not free.needed
    assert free.matches(None)
    free.require(GUEST)


def test_only_the_token_itself_matches_and_it_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(access.TOKEN, TOKEN)
    held = Access.from_environment(tmp_path)
    assert held.matches(TOKEN)
    for wrong in (None, "", TOKEN[:-1], TOKEN + "x", TOKEN.upper(), "ünïcode"):
        assert not held.matches(wrong)
    assert TOKEN not in repr(held)
    with pytest.raises(Refused):
        held.require(GUEST)
    held.require(KNOWN)


def test_a_token_file_goes_before_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "token").write_text(TOKEN + "\n")
    monkeypatch.setenv(access.TOKEN, "another-token-of-the-tests")
    monkeypatch.setenv(access.TOKEN_FILE, str(tmp_path / "token"))
    assert access.read_token() == TOKEN


@pytest.mark.parametrize(
    "weak", ["short", "with spaces in the token", "with-a-tab\tin-the-token", "ünïcode-in-the-token"]
)
def test_weak_tokens_are_refused_without_being_repeated(weak: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(access.TOKEN, weak)
    with pytest.raises(UserError, match="at least 16 printable characters") as error:
        access.read_token()
    assert weak not in str(error.value)


def test_a_token_file_that_cannot_be_read_is_an_error_and_not_an_open_door(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(access.TOKEN_FILE, "/nowhere/token")
    with pytest.raises(UserError, match="token file /nowhere/token cannot be read"):
        access.read_token()


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "localhost", "::1", "[::1]"])
def test_addresses_of_this_machine(host: str):
    assert access.is_loopback(host)


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "10.0.0.1", "localhost.evil.example", "127.0.0.1.evil.example", "", "None"]
)
def test_addresses_of_others(host: str):
    assert not access.is_loopback(host)


def test_roots_are_folders_and_uris_in_one_list():
    assert access.split_roots("/data:s3://bucket/traces:/more") == ["/data", "s3://bucket/traces", "/more"]
    assert access.split_roots("") == []


@pytest.fixture
def rooted(tmp_path: Path) -> Access:
    for name in ("store", "data", "data-private"):
        (tmp_path / name).mkdir()
    (tmp_path / "store" / "way-out").symlink_to(tmp_path / "data-private")
    return Access(tmp_path / "store", (str(tmp_path / "data"), "s3://bucket/traces"))


def test_what_lies_in_the_store_or_a_root_may_be_read(rooted: Access):
    here = rooted.store
    inside = ["uploads/1/a.jsonl", f"{here.parent}/data/x/*.jsonl", "s3://bucket/traces/2026/a.jsonl", "samples"]
    policies = [
        "--policy=te(proxy=assistant,delay=1,keep=0.2)",
        "--traces=source=tau-bench,family=air",
        "Qwen/Qwen3-8B",
    ]
    assert refused(rooted, [*inside, *policies, "--sweep=gpu=h100,h200", "--redact", ""]) == []
    rootless = Access(here)
    assert refused(rootless, [*inside, *policies]) == inside[1:3], "it is the roots that let these two be read"


def refused(access: Access, words: list[str]) -> list[str]:
    """Those of the words that name a place outside of what may be read."""
    out = []
    for word in words:
        try:
            access.require_inside([word], access.store)
        except Refused:
            out.append(word)
    return out


@pytest.mark.parametrize(
    "word",
    [
        "/etc/passwd",
        "--gpu=/etc/passwd",
        "--sweep=gpu=h100,/etc/passwd",
        "--traces=source=/etc/passwd",
        "../data-private/x",
        "uploads/../../data-private/x",
        "way-out/x",
        "~root/.ssh/id_rsa",
        "~/.netrc",
        "file:///etc/passwd",
        "s3://bucket/traces-private/a",
        "s3://bucket/traces/../private",
        "s3://other",
        "simplecache::s3://bucket/traces/a",
        "/proc/self/environ",
        "a\0b",
        "https://10.0.0.1/latest/meta-data",
    ],
)
def test_what_lies_elsewhere_may_not(rooted: Access, word: str):
    with pytest.raises(Refused, match="outside of what may be read"):
        rooted.require_inside([word], rooted.store)


def test_a_folder_whose_name_only_begins_like_a_root_is_outside(rooted: Access):
    with pytest.raises(Refused):
        rooted.require_inside([f"{rooted.store.parent}/data-private/x"], rooted.store)


def test_a_submitted_job_needs_the_token_a_served_verb_and_known_options(tmp_path: Path):
    service = service_of(tmp_path / "store")
    for ask in (
        lambda: service.submit("validate", {}, GUEST),
        lambda: service.upload("a.jsonl", [b"x"], GUEST),
        lambda: service.cancel("x", GUEST),
        lambda: service.resume("x", GUEST),
        lambda: service.remove("x", GUEST),
        lambda: service.remove_upload("x", GUEST),
        lambda: service.delete_traces("x", GUEST),
    ):
        with pytest.raises(Refused, match="a token is needed"):
            ask()
    assert not (tmp_path / "store").exists(), "a refused visitor leaves nothing"
    with pytest.raises(UserError, match="unknown job 'sql'"):
        service.submit("sql", {"query": "select 1"}, KNOWN)
    with pytest.raises(UserError, match=r"unknown option 'out'.*Known: .*paths"):
        service.submit("traces ingest", {"paths": ["a"], "out": "x"}, KNOWN)
    with pytest.raises(UserError, match="needs paths"):
        service.submit("traces ingest", {}, KNOWN)


def test_what_was_done_is_in_the_audit_log_with_who_and_when_and_without_the_token(tmp_path: Path):
    service = service_of(tmp_path / "store")
    job = service.submit("validate", {}, KNOWN)
    service.cancel(job.id, KNOWN)
    upload = service.upload("a.jsonl", [b"{}\n"], KNOWN)
    service.remove_upload(upload.upload, KNOWN)
    path = service.store.path / access.AUDIT
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["who"], line["what"]) for line in lines] == [
        ("ann", "submit"), ("ann", "cancel"), ("ann", "upload"), ("ann", "remove upload"),
    ]  # fmt: skip
    assert all(line["when"].endswith("+00:00") for line in lines)
    assert TOKEN not in path.read_text()
    assert path.stat().st_mode & 0o077 == 0, "for the owner's eyes"


def test_audit_lines_of_many_writers_do_not_mix(tmp_path: Path):
    def write(number: int) -> None:
        for _ in range(50):
            access.audit(tmp_path, f"writer {number}", "test", text="x" * 2_000)

    writers = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert len([json.loads(line) for line in (tmp_path / access.AUDIT).read_text().splitlines()]) == 200


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "=cmd|' /C calc'!A0"])
def test_text_that_a_spreadsheet_would_run_is_made_harmless(text: str):
    out = access.safe_csv([{"name": text, text: 1}])
    head, row = csv.reader(io.StringIO(out, newline=""))
    assert row[0] == "'" + text
    assert head[1] == "'" + text


def test_figures_stay_figures_also_below_zero():
    assert access.safe_csv([{"a": -0.5, "b": None, "c": True}, {"a": 2, "d": "x"}]) == (
        "a,b,c,d\r\n-0.5,,True,\r\n2,,,x\r\n"
    )


@given(st.lists(st.dictionaries(st.text(min_size=1), st.text() | st.integers() | st.none(), min_size=1), min_size=1))
def test_no_cell_of_any_table_begins_like_a_formula(rows: list[dict[str, str | int | None]]):
    numbers = {str(v) for row in rows for v in row.values() if isinstance(v, int)}
    for line in csv.reader(io.StringIO(access.safe_csv(rows), newline="")):
        for cell in line:
            assert not cell.startswith(("=", "+", "-", "@", "\t")) or cell in numbers
