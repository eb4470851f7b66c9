"""The `traces` commands: answers on stdout, one line on stderr when the user can fix it, and the exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from kvmill.traces import commands

app = typer.Typer()
commands.register(app)
GOOD = '{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello \\u001b[31mred"}]}\n'


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "a.jsonl"
    path.write_text(GOOD + "broken\n")
    return path


def run(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["traces", *map(str, arguments)])
    assert result.exit_code == code, result.output
    if code:
        assert result.stderr.startswith("error: ")
        assert result.stderr.count("\n") == 1
    return result.stdout


def test_ingest_answers_with_the_fixed_keys_and_lists_what_it_stored(path: Path) -> None:
    answer = json.loads(run("ingest", path, "--json"))
    assert (answer["accepted"], answer["rejected"], answer["duplicates"]) == (1, 1, 0)
    assert {"reject_file", "losses", "redacted"} <= set(answer)
    assert Path(answer["reject_file"]).is_file()
    assert run("ingest", path).startswith("trajectories: 0 accepted, 1 rejected, 1 in the store already\n")
    listed = json.loads(run("list", "--json"))
    assert listed["total"] == 1
    shown = json.loads(run("show", listed["trajectories"][0]["id"], "--json"))
    assert shown["turns"][0]["assistant"]["content"] == "Hello \x1b[31mred"


def test_strict_gives_3_after_the_answer(path: Path) -> None:
    assert json.loads(run("ingest", path, "--json", "--strict", code=3))["accepted"] == 1


def test_a_missing_file_an_unknown_format_and_an_unknown_id_give_2(path: Path) -> None:
    for arguments in (
        ("ingest", path.parent / "nope"),
        ("ingest", path, "--format", "nope"),
        ("show", "nope"),
        ("delete", "nope"),
    ):
        assert run(*arguments, code=2) == "", "nothing but the error is said"


def test_nothing_usable_gives_3(path: Path) -> None:
    path.write_text("timestamp,tokens\n1,2\n")
    assert json.loads(run("ingest", path, "--json", code=3))["accepted"] == 0
    run("check", path, code=3)


def test_recorded_escape_sequences_are_spelled_out_on_a_terminal(path: Path) -> None:
    run("ingest", path)
    id = json.loads(run("list", "--json"))["trajectories"][0]["id"]
    shown = run("show", id, "--full")
    assert "Hello \\x1b[31mred" in shown
    assert "\x1b" not in shown


def test_line_breaks_in_the_name_of_a_file_begin_no_line_of_an_answer(tmp_path: Path) -> None:
    (tmp_path / "bad\n9 accepted").write_text("{")
    (tmp_path / "good").write_text(GOOD)
    shown = run("ingest", tmp_path)
    assert "bad\\n9 accepted" in shown
    assert "\n9 accepted" not in shown


def test_show_names_the_samples_without_a_store() -> None:
    result = CliRunner().invoke(app, ["traces", "show", "registry-03"])
    assert result.exit_code == 0
    assert result.stdout.startswith("registry-03: 11 turns, ")
    assert result.stdout.count("\nprobe ") == 8


def test_show_takes_whatever_names_one_run_and_refuses_what_names_several(path: Path) -> None:
    run("ingest", path)
    assert "1 turns" in run("show", "last")
    assert "1 turns" in run("show", "source=openai-chat")
    run("show", "samples", code=2)


def test_check_stores_nothing_and_names_examples(path: Path, own_store: Path) -> None:
    checked = json.loads(run("check", path, "--json"))
    assert (checked["records"], checked["rejected"]) == (1, 1)
    assert checked["files"][0]["examples"] == [
        "record 2 would be rejected: no valid JSON: Expecting value at character 1"
    ]
    run("check", path, "--strict", code=3)
    assert not own_store.exists()


def test_formats_lists_every_reader_and_says_whether_a_real_file_was_read() -> None:
    formats = {f["name"]: f for f in json.loads(run("formats", "--json"))["formats"]}
    assert {"openai-chat", "tau-bench", "mooncake", "table"} <= set(formats)
    assert formats["tau-bench"] == {
        "name": "tau-bench",
        "kind": "trajectories",
        "verified": True,
        "title": formats["tau-bench"]["title"],
    }
    shown = run("formats").splitlines()
    assert shown[0].split("  ")[0] == "format"
    assert all(("unverified" in line) != formats[line.split()[0]]["verified"] for line in shown[2:])


def test_delete_removes_a_run(path: Path) -> None:
    run("ingest", path)
    id = json.loads(run("list", "--json"))["trajectories"][0]["id"]
    assert run("delete", id) == "deleted 1 trajectories, 0 requests\n"
    assert json.loads(run("list", "--json"))["total"] == 0
    assert run("list").startswith("nothing in the store yet")


def test_columns_are_passed_on_and_what_is_wrong_with_them_is_said(tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    table.write_text("when,in,out\n0.5,10,2\n1.5,20,4\n")
    good = "arrival_s=when,input_tokens=in,output_tokens=out"
    shown = run("ingest", table, "--columns", good)
    assert shown.startswith("requests: 2 accepted, 0 rejected")
    assert "2 requests in 1.0 s, 1 per s" in shown
    assert json.loads(run("check", table, "--columns", good, "--json"))["files"][0]["log"]["requests"] == 2
    for wrong, words in (("when", "'when' is not FIELD=COLUMN"), ("arrival=when", "unknown field 'arrival'")):
        result = CliRunner().invoke(app, ["traces", "ingest", str(table), "--columns", wrong])
        assert result.exit_code == 2
        assert words in result.stderr


def test_what_was_passed_over_is_said_once(tmp_path: Path) -> None:
    for n in range(30):
        (tmp_path / f"{n:02d}.json").write_text("{}")
    (tmp_path / "a.jsonl").write_text(GOOD)
    (tmp_path / ".hidden").write_text(GOOD)
    (tmp_path / "link").symlink_to("/etc/hostname")
    shown = run("ingest", tmp_path)
    assert shown.count("not read: ") == 21
    assert "not read: 10 files more" in shown
    assert "30 × no known format; its first record is an empty object" in shown
    assert shown.count("Known formats") == 0
    assert "1 hidden files and folders were skipped" in shown
    assert f"not followed: {tmp_path / 'link'}" in shown
    assert "1 hidden files" in run("check", tmp_path, code=3)
