"""Selections: the words, ids, filters and files of `--traces`, and families in turn under `--limit`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvmill.errors import UserError
from kvmill.traces import samples
from kvmill.traces.ingest import ingest
from kvmill.traces.select import select, select_requests
from kvmill.traces.store import Store


def write(path: Path, families: dict[str, int]) -> Path:
    rows = [
        {"family": family, "messages": [{"role": "user", "content": f"{n}"}, {"role": "assistant", "content": family}]}
        for family, count in families.items()
        for n in range(count)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "store")


def test_samples_need_no_store_and_limit_takes_families_in_turn(store: Store) -> None:
    assert select(store, "samples") == samples.load()
    four = select(store, "samples", 4)
    assert [run.id for run in four] == ["operations-00", "operations-01", "registry-00", "registry-01"]
    assert [run.id for run in select(store, "samples", 3)] == ["operations-00", "operations-01", "registry-00"]
    assert [run.id for run in select(store, "registry-07")] == ["registry-07"]
    assert not store.path.exists()


def test_a_small_family_does_not_shorten_the_selection(store: Store, tmp_path: Path) -> None:
    ingest(store, [write(tmp_path / "a", {"big": 9, "small": 1})])
    chosen = select(store, "last", 5)
    assert sorted(run.family for run in chosen) == ["big"] * 4 + ["small"]
    assert [run.id for run in chosen] == sorted(run.id for run in chosen)


def test_last_is_the_newest_ingest_of_runs_and_all_is_everything(store: Store, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nothing was ingested.*--traces samples"):
        select(store, "last")
    ingest(store, [write(tmp_path / "a", {"x": 2})])
    ingest(store, [write(tmp_path / "b", {"y": 3})])
    (tmp_path / "log").write_text('{"timestamp": 9000, "input_length": 3, "output_length": 1}\n' * 2)
    ingest(store, [tmp_path / "log"])
    assert {run.family for run in select(store, "last")} == {"y"}
    assert len(select(store, "all")) == 5
    assert [r.arrival_s for r in select_requests(store, "last")] == [9.0, 9.0]


def test_filters_ids_paths_and_patterns(store: Store, tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", {"x": 2, "y": 1})
    assert len(select(store, str(path))) == 3
    assert len(select(store, str(path))) == 3, "ingesting it again selects the same"
    assert len(select(store, str(tmp_path / "*.jsonl"))) == 3
    assert len(select(store, "source=openai-chat,family=x")) == 2
    one = select(store, "family=y")[0]
    assert select(store, one.id) == [one]
    with pytest.raises(UserError, match=r"unknown key 'famly'.*Did you mean 'family'"):
        select(store, "famly=x")
    with pytest.raises(UserError, match="no trajectories for 'nope'"):
        select(store, "nope")
    with pytest.raises(UserError, match="no such file"):
        select(store, "./nope.json")
    with pytest.raises(UserError, match="--limit 0"):
        select(store, "all", 0)
    with pytest.raises(UserError, match="no request log"):
        select_requests(store, "all")
