"""Export: whole files or none, nothing replaced unasked, and every run says what it lost."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from kvmill.errors import UserError
from kvmill.traces import commands, samples
from kvmill.traces.export import WRITERS, export
from kvmill.traces.ingest import ingest
from kvmill.traces.select import select, stream
from kvmill.traces.store import Store
from kvmill.traces.writers import atif

app = typer.Typer()
commands.register(app)
TALK: list[dict[str, Any]] = [
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello"},
    {"role": "user", "content": "Again"},
    {"role": "assistant", "content": "Once more"},
]


def talks(path: Path, count: int) -> Path:
    lines = [{"messages": [{"role": "system", "content": f"S{n}"}, *TALK], "family": "x"} for n in range(count)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture
def store(tmp_path: Path) -> Store:
    where = Store(tmp_path / "store")
    ingest(where, [talks(tmp_path / "a.jsonl", 70)])
    return where


def run(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["traces", "export", *map(str, arguments)])
    assert result.exit_code == code, result.output
    if code:
        assert result.stderr.startswith("error: ")
        assert result.stderr.count("\n") == 1
    return result.stdout


def test_exported_atif_is_found_in_the_store_again(store: Store, tmp_path: Path) -> None:
    done = export(store, "last", "atif", tmp_path / "out")
    files = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert (done.exported, len(files), done.lost) == (70, 70, {})
    assert files == sorted(row["file"] for row in done.trajectories)
    assert done.bytes == sum((tmp_path / "out" / name).stat().st_size for name in files)
    again = ingest(store, [tmp_path / "out"])
    assert (again.accepted, again.duplicates) == (0, 70)


def test_one_file_holds_a_document_a_line(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "sub" / "all.jsonl"
    assert export(store, "all", "atif", path).exported == 70
    assert len(path.read_text().splitlines()) == 70
    assert [entry.name for entry in path.parent.iterdir()] == ["all.jsonl"]


def test_aiperf_rows_are_one_session_a_run_and_say_what_is_lost(store: Store, tmp_path: Path) -> None:
    done = export(store, "last", "aiperf", tmp_path / "load.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "load.jsonl").read_text().splitlines()]
    assert len(rows) == 2 * 70
    assert {row["session_id"] for row in rows} == {row["id"] for row in done.trajectories}
    assert done.lost["turns"] == 70
    assert all("turns" in row["lost"] for row in done.trajectories)


def test_a_run_of_one_call_loses_its_turn_in_aiperf(tmp_path: Path) -> None:
    path = tmp_path / "one.jsonl"
    path.write_text(json.dumps({"messages": TALK[:2]}))
    ingest(Store(tmp_path / "s"), [path])
    assert export(Store(tmp_path / "s"), "last", "aiperf", tmp_path / "o.jsonl").lost == {"turns": 1}


def test_nothing_is_replaced_without_force(store: Store, tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = export(store, "last", "atif", out).trajectories[3]["file"]
    for entry in out.iterdir():
        if entry.name != first:
            entry.unlink()
    (out / first).write_text("mine")
    with pytest.raises(UserError, match=f"{first} is there already; give --force"):
        export(store, "last", "atif", out)
    assert [entry.name for entry in out.iterdir()] == [first], "nothing is written when one file is in the way"
    assert (out / first).read_text() == "mine"
    assert export(store, "last", "atif", out, force=True).exported == 70
    assert (out / first).read_text() != "mine"


def test_a_failure_leaves_the_old_file_and_no_half_of_a_new_one(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "all.jsonl"
    path.write_text("old")
    made = 0

    def fails(_: Any) -> dict[str, Any]:
        nonlocal made
        made += 1
        if made > 5:
            raise OSError(28, "no space left")
        return {}

    monkeypatch.setitem(WRITERS, "atif", replace(WRITERS["atif"], values=lambda t: [fails(t)], back=lambda _: None))
    with pytest.raises(OSError, match="no space"):
        export(store, "last", "atif", path, force=True)
    assert path.read_text() == "old"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["a.jsonl", "all.jsonl", "store"]


def test_an_id_cannot_name_a_file_elsewhere(tmp_path: Path) -> None:
    evil = replace(samples.load()[0], source="../../evil", family="../x")
    path = tmp_path / "in.json"
    path.write_text(json.dumps(atif.document(evil)))
    where = Store(tmp_path / "store")
    ingest(where, [path])
    (run,) = select(where)
    assert run.source == "../../evil"
    done = export(where, "last", "atif", tmp_path / "deep" / "out")
    assert [entry.name for entry in (tmp_path / "deep" / "out").iterdir()] == [done.trajectories[0]["file"]]
    assert not {"evil", "/"} & set(done.trajectories[0]["file"].split("-")[0])
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["deep", "in.json", "store"]


def test_ids_that_differ_only_in_odd_characters_get_names_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [replace(samples.load()[0], id="a/b"), replace(samples.load()[0], id="a:b")]
    monkeypatch.setattr("kvmill.traces.export.stream", lambda *_: (["a/b", "a:b"], iter(runs)))
    done = export(Store(tmp_path / "s"), "last", "atif", tmp_path / "out")
    assert [row["file"] for row in done.trajectories] == ["a_b.json", "a_b~2.json"]


def test_a_stream_gives_what_a_selection_gives(store: Store) -> None:
    ids, runs = stream(store)
    assert [run.id for run in runs] == ids
    assert list(stream(store)[1]) == select(store)
    assert list(stream(store, "samples")[1]) == sorted(samples.load(), key=lambda run: run.id)
    with pytest.raises(UserError, match="no trajectories for 'nope'"):
        stream(store, "nope")


def test_the_command_answers_with_what_is_lost(store: Store, tmp_path: Path) -> None:
    answer = json.loads(run("last", "--out", tmp_path / "o", "--store", store.path, "--json"))
    assert {"to", "out", "exported", "bytes", "lost", "trajectories"} == set(answer)
    assert answer["trajectories"][0]["lost"] == []
    assert "nothing is lost" in run("samples", "--out", tmp_path / "s")
    text = run("samples", "--to", "aiperf", "--out", tmp_path / "s.jsonl")
    assert "lost in 80 of them: the ground truth (label)" in text


def test_mistakes_are_one_line_and_2(store: Store, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder.jsonl").mkdir()
    for arguments in (
        ("samples", "--to", "nope"),
        ("samples", "--to", "aiperf", "--out", tmp_path / "folder"),
        ("samples", "--out", tmp_path / "file"),
        ("samples", "--out", tmp_path / "folder.jsonl"),
        ("nope", "--store", store.path),
    ):
        assert run(*arguments, code=2) == ""
