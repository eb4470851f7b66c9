"""docs/formats.md is what its generator writes, names every reader, loss and kind; its figures are of real files."""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path

import pytest

from kvmill.benchmarks import formats as bench
from kvmill.benchmarks.pages.formats import page
from kvmill.traces.formats import FORMATS
from kvmill.traces.losses import LOSSES, RENDERING
from kvmill.traces.redact import KINDS
from kvmill.traces.writers.lost import LOST


@pytest.fixture(scope="module")
def text() -> str:
    return bench.PAGE.read_text()


def test_the_page_is_what_the_figures_and_the_readers_make(text: str) -> None:
    """Renew it with `kvmill bench formats --from-figures` after a change of a reader's words or of a loss."""
    assert page(json.loads(bench.FIGURES.read_text()), bench.described()) == text


def test_it_names_every_format_loss_kind_and_loss_of_export(text: str) -> None:
    for name in (*FORMATS, *LOSSES, *RENDERING, *KINDS, *LOST):
        assert f"| `{name}` |" in text


def test_no_folder_of_a_machine_is_in_it(text: str) -> None:
    here = [str(Path(__file__).resolve().parents[2]), str(Path.home()), tempfile.gettempdir()]
    # Any absolute path in quotes or code marks, whatever the machine; a lone slash and addresses are none.
    absolute = re.compile(r"""["'`(\s]/[a-z]+/[\w.-]""")
    for figures in (text, bench.FIGURES.read_text()):
        assert not [folder for folder in here if f"{folder}/" in figures]
        assert not absolute.findall(figures)


def test_a_file_is_measured_as_ingest_sees_it(tmp_path: Path) -> None:
    said = "a sentence that is long enough to be looked for in what was kept of the record"
    good = {
        "messages": [{"role": "user", "content": said}, {"role": "assistant", "content": "ok"}],
        "note": said + " too",
    }
    path = tmp_path / "in" / "a.jsonl"
    path.parent.mkdir()
    path.write_text(json.dumps(good) + "\nbroken\n")
    row = bench.measured(path, tmp_path)
    assert (row["file"], row["format"], row["accepted"], row["rejected"]) == ("in/a.jsonl", "openai-chat", 1, 1)
    assert (row["turns"], row["calls"], row["requests"]) == (1, 0, 0)
    assert row["left_out"] == [["note", len(said) + 4]]
    assert row["text_kept"] == pytest.approx(len(said) / (2 * len(said) + 4))
    path.write_text("no json here\n")
    row = bench.measured(path, tmp_path)
    assert row["accepted"] == 0
    assert str(tmp_path) not in row["error"]
    assert "| – | 0 | all: none of its first records can be read" in page({"files": [row]}, [])


def test_every_shared_file_is_still_what_the_page_says(shared_data: Path) -> None:
    """Small files only: the big ones are request logs, read by their readers' own tests."""
    folder = shared_data / "traces"
    rows = {row["file"]: row for row in json.loads(bench.FIGURES.read_text())["files"]}
    here = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    assert set(rows) == set(here)
    for name, path in here.items():
        if path.stat().st_size < 100_000 and path.suffix != ".csv":
            found = bench.measured(path, folder)
            counted = ("format", "accepted", "rejected", "turns", "calls", "losses", "error")
            assert {key: found[key] for key in counted} == {key: rows[name][key] for key in counted}, name
