"""Ingest of many files: some belong together, some are nothing, and an interruption costs no more than itself."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kvmill.errors import InputError, UserError
from kvmill.traces import files, writing
from kvmill.traces import ingest as ingesting
from kvmill.traces.beside import LocalSource
from kvmill.traces.check_files import check_files
from kvmill.traces.ingest import ingest, require_accepted
from kvmill.traces.readers import openai_chat
from kvmill.traces.reading import Format, Item
from kvmill.traces.select import select, select_requests
from kvmill.traces.store import Store

ROOT = Path(__file__).resolve().parents[2]


def talk(n: int) -> str:
    said = [{"role": "user", "content": f"Question {n}"}, {"role": "assistant", "content": f"Answer {n}"}]
    return json.dumps({"messages": said}) + "\n"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "store")


@pytest.fixture
def spread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A format of which a run is one file and what lies beside it: `index.json` names the others."""

    def gather(records, source):  # type: ignore[no-untyped-def]  # noqa: ANN
        for found in records:
            text = [source.text(name) for name in found.value["parts"]]
            said = [{"role": "user", "content": str(text)}, {"role": "assistant", "content": "Yes"}]
            yield Item(found.place, openai_chat.read(said))

    made = Format("spread", "for this test", "trajectories", lambda record: "parts" in record, gather=gather)
    monkeypatch.setitem(ingesting.formats.FORMATS, "spread", made)


@pytest.mark.usefixtures("spread")
def test_files_that_were_read_with_another_are_part_of_it(store: Store, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    (folder / "events").mkdir(parents=True)
    (folder / "index.json").write_text(json.dumps({"parts": ["events/1.txt", "a.tsv", "events/1.json"]}))
    for name in ("a.tsv", "events/1.txt", "events/2.txt"):
        (folder / name).write_text("no records")
    (folder / "events/1.json").write_text(talk(1))
    report = ingest(store, [folder])
    told = {
        Path(file.path).name: (file.accepted, file.part_of is not None, file.error is not None) for file in report.files
    }
    assert told == {
        "a.tsv": (0, True, False),
        "index.json": (1, False, False),
        "1.json": (0, True, False),
        "1.txt": (0, True, False),
        "2.txt": (0, False, True),
    }
    assert (report.accepted, report.rejected) == (1, 1)
    checked = {Path(file["path"]).name: file for file in check_files([folder])["files"]}
    assert {name for name, file in checked.items() if file["part_of"]} == {"a.tsv", "1.json", "1.txt"}
    assert {name for name, file in checked.items() if file["error"]} == {"2.txt"}


def test_what_was_passed_over_is_reported(store: Store, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / ".DS_Store").write_text("x")
    (folder / "a.jsonl").write_text(talk(1))
    (folder / "link").symlink_to("/etc/hostname")
    report = ingest(store, [folder])
    assert (report.accepted, report.hidden_files, report.links_not_followed) == (1, 1, [str(folder / "link")])


def test_a_folder_of_which_nothing_is_accepted_fails_and_says_why(store: Store, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.txt").write_text("words")
    (folder / "b.json").write_text("{}")
    report = ingest(store, [folder])
    with pytest.raises(InputError, match=r"none of its first records can be read .* \(and 1 more files\)"):
        require_accepted(report, strict=False)
    assert store.runs("ingest")[0].state == "incomplete"


def test_a_second_ingest_selects_what_the_first_one_stored(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "_SEGMENT_BYTES", 1000)
    (tmp_path / "a").write_text("".join(map(talk, range(50))))
    (tmp_path / "log").write_text('{"timestamp": 9000, "input_length": 3, "output_length": 1}\n' * 5)
    assert ingest(store, [tmp_path / "a", tmp_path / "log"]).accepted == 55
    again = ingest(store, [tmp_path / "a", tmp_path / "log"])
    assert (again.accepted, again.duplicates) == (0, 55)
    assert len(select(store, "last")) == len(select(store, again.run)) == 50
    assert len(select_requests(store, "last")) == 5
    assert store.check() == []


def test_columns_say_what_a_table_holds(store: Store, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("when,in,out\n0.5,10,2\n1.5,20,4\n")
    columns = {"arrival_s": "when", "input_tokens": "in", "output_tokens": "out"}
    report = ingest(store, [tmp_path / "t.csv"], columns=columns)
    assert (report.accepted, report.files[0].format) == (2, "table")
    assert report.files[0].log is not None
    assert report.files[0].log["rate_per_s"] == 1.0
    assert [r.input_tokens for r in select_requests(store)] == [10, 20]
    assert store.info(report.run).config["columns"] == columns


def test_half_characters_that_a_reader_makes_are_refused(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(record: object) -> object:
        return openai_chat.read([{"role": "user", "content": "\ud83d"}, {"role": "assistant", "content": "x"}])

    made = Format("halves", "for this test", "trajectories", lambda record: "half" in record, read)  # type: ignore[arg-type]
    monkeypatch.setitem(ingesting.formats.FORMATS, "halves", made)
    (tmp_path / "a").write_text('{"half": 1}\n')
    report = ingest(store, [tmp_path / "a"], redact=False)
    assert (report.accepted, report.rejected) == (0, 1)
    assert "cannot be kept" in next(iter(report.reasons))


def test_detection_looks_at_few_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_SNIFFED_BYTES", 1 << 20)
    monkeypatch.setattr(files, "_SNIFFED", 1 << 20)
    (tmp_path / "a").write_text(talk(1) * 40_000)
    reading = files.read_file(tmp_path / "a")
    assert isinstance(reading.source, LocalSource)
    assert reading.records.taken <= 2 << 20
    assert sum(1 for _ in reading.items) == 40_000


def test_an_interrupted_ingest_keeps_what_it_has_and_the_next_one_goes_on(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "a.fifo"
    os.mkfifo(path)
    command = [sys.executable, "-m", "kvmill", "traces", "ingest", str(path), "--store", str(store.path), "--no-redact"]
    child = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with path.open("w") as pipe:
        pipe.write("".join(map(talk, range(2000))))
        pipe.flush()
        deadline = time.monotonic() + 60
        while not store.runs() and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(1)
        child.send_signal(signal.SIGINT)
        _, said = child.communicate(timeout=60)
    assert child.returncode == 130
    assert said.endswith("interrupted; what was finished is kept\n")
    [run] = store.runs("ingest")
    assert run.state == "incomplete"
    assert store.check() == []
    kept = run.rows("trajectories")
    assert 0 < kept <= 2000
    (tmp_path / "whole").write_text("".join(map(talk, range(2500))))
    report = ingest(store, [tmp_path / "whole"], redact=False)
    assert (report.accepted, report.duplicates) == (2500 - kept, kept)
    assert len(select(store, "last")) == 2500


@pytest.mark.parametrize("path", ["", "  "])
def test_an_empty_path_is_no_folder(tmp_path: Path, path: str) -> None:
    with pytest.raises(UserError, match="an empty path"):
        ingest(Store(tmp_path), [path])


def test_what_an_answer_quotes_of_a_refused_file_is_redacted_and_its_path_stays(tmp_path: Path) -> None:
    path = tmp_path / "ann.lee@corp.io.json"
    path.write_text('{"ann.lee@corp.io": 1}')
    for redact in (True, False):
        [file] = ingest(Store(tmp_path / f"store-{redact}"), [path], redact=redact).files
        assert file.error is not None
        assert file.error.startswith(str(path))
        assert ("ann.lee@corp.io" in file.error.removeprefix(str(path))) is not redact
