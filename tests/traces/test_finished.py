"""A large file that was read to its end is not read again, unless anything about it, or the store, has changed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from kvmill.traces import finished
from kvmill.traces import ingest as ingesting
from kvmill.traces.delete import delete
from kvmill.traces.ingest import IngestReport, ingest
from kvmill.traces.select import select
from kvmill.traces.store import Store


def talk(n: int, **more: Any) -> str:
    said = [{"role": "user", "content": f"Question {n}"}, {"role": "assistant", "content": f"Answer {n}"}]
    return json.dumps({"messages": said, **more}) + "\n"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "store")


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(finished, "_LEAST_BYTES", 1)
    path = tmp_path / "a.jsonl"
    path.write_text("".join(map(talk, range(20))) + talk(3))
    return path


def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that are really read from now on."""
    read: list[str] = []
    plain = ingesting.read_file

    def seen(place: Any, *arguments: Any) -> Any:
        read.append(place.name)
        return plain(place, *arguments)

    monkeypatch.setattr(ingesting, "read_file", seen)
    return read


def figures(report: IngestReport) -> tuple[int, int, int, str | None]:
    return report.accepted, report.duplicates, report.rejected, report.files[0].format


def test_the_second_time_gives_the_same_answer_without_reading(
    store: Store, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert figures(ingest(store, [path])) == (20, 1, 0, "openai-chat")
    before = select(store, "last")
    read = counted(monkeypatch)
    assert figures(ingest(store, [path])) == (0, 21, 0, "openai-chat")
    assert read == []
    assert select(store, "last") == before


def test_a_log_is_summed_up_again_without_reading(store: Store, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.write_text('{"timestamp": 9000, "input_length": 3, "output_length": 1}\n' * 5)
    first = ingest(store, [path])
    read = counted(monkeypatch)
    again = ingest(store, [path])
    assert (read, again.duplicates) == ([], 5)
    assert again.files[0].log == first.files[0].log is not None


def test_another_time_other_words_or_other_settings_are_read(
    store: Store, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ingest(store, [path])
    read = counted(monkeypatch)
    os.utime(path, (1, 1))
    assert ingest(store, [path]).duplicates == 21
    ingest(store, [path], redact=False)
    ingest(store, [path], format="openai-chat")
    path.write_text(talk(99))
    assert ingest(store, [path]).accepted == 1
    assert read == ["a.jsonl"] * 4


def test_what_was_deleted_since_is_read_again(store: Store, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ingest(store, [path])
    delete(store, select(store, "all")[0].id)
    read = counted(monkeypatch)
    assert figures(ingest(store, [path]))[:2] == (1, 20)
    assert read == ["a.jsonl"]


def test_rejects_and_calls_of_longer_runs_are_told_every_time(
    store: Store, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = talk(1, response={"choices": [{"message": {"role": "assistant", "content": "x"}}]})
    for text in (talk(1) + "broken\n", call + talk(2)):
        path.write_text(text)
        first = ingest(store, [path])
        read = counted(monkeypatch)
        again = ingest(store, [path])
        assert read == ["a.jsonl"]
        assert again.rejected == first.rejected


def test_a_note_that_was_cut_is_no_note(store: Store, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = ingest(store, [path]).run
    noted = store.folder(run) / finished.FINISHED
    noted.write_text(noted.read_text()[:-10])
    read = counted(monkeypatch)
    assert ingest(store, [path]).duplicates == 21
    assert read == ["a.jsonl"]
