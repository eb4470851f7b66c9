"""Which trajectories a night takes: pinned ones, and the newest with families in turn."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from kvmill.errors import UserError
from kvmill.nightly.choice import choose
from kvmill.nightly.config import NightConfig
from kvmill.traces import samples
from kvmill.traces.rows import trajectory_row
from kvmill.traces.store import Store


def config(**more: object) -> NightConfig:
    return NightConfig("n", Path(), **more)  # type: ignore[arg-type]


def ingested(store: Store, family: str, source: str, names: list[str]) -> None:
    """One ingest; a later one is newer."""
    run = store.begin("ingest", {})
    template = samples.load()[0]
    run.add(
        {"trajectories": [trajectory_row(replace(template, id=name, family=family, source=source)) for name in names]},
        key="some",
    )
    run.finish()


def test_pinned_ones_are_the_same_every_night_and_limited_by_family(tmp_path: Path) -> None:
    chosen = choose(Store.open(tmp_path), config(pinned=("samples",), per_family=3))
    assert Counter(t.family for t in chosen.trajectories) == {"operations": 3, "registry": 3}
    assert chosen.pinned == {t.id for t in chosen.trajectories}
    assert chosen.newest == 0
    one = samples.load()[5].id
    both = choose(Store.open(tmp_path), config(pinned=(one, "samples")))
    assert len(both.trajectories) == 80


def test_newest_ones_come_by_family_in_turn_newest_ingest_first(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    ingested(store, "a", "x", ["a1", "a2", "a3", "a4"])
    ingested(store, "b", "y", ["b1"])
    ingested(store, "a", "y", ["a5"])
    chosen = choose(store, config(newest=4))
    assert [t.id for t in chosen.trajectories] == ["a5", "b1", "a1", "a2"]
    assert (chosen.newest, chosen.pinned) == (4, frozenset())
    assert [t.id for t in choose(store, config(newest=9, newest_from="source=x")).trajectories] == [
        "a1",
        "a2",
        "a3",
        "a4",
    ]


def test_a_pinned_one_is_not_taken_again_as_new(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    ingested(store, "a", "x", ["a1", "a2"])
    chosen = choose(store, config(pinned=("a1",), newest=5))
    assert [t.id for t in chosen.trajectories] == ["a1", "a2"]
    assert (chosen.pinned, chosen.newest) == ({"a1"}, 1)


def test_nothing_to_replay_is_a_users_mistake(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nothing to replay"):
        choose(Store.open(tmp_path), config(newest=5))
