"""What each worker gets of a cluster, and which executors can be asked for: no Ray needed."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import pytest

from kvmill.errors import UserError
from kvmill.replay.asked import Asked
from kvmill.replay.executors import crew
from kvmill.replay.executors.choice import Executing
from kvmill.replay.executors.cluster import connected
from kvmill.replay.executors.reach import Reach
from kvmill.replay.executors.remote import share_for
from kvmill.replay.executors.shares import Machine, Share, share_out
from kvmill.traces import samples
from kvmill.traces.store import Store

NODE = Machine(cpus=96, gpus=8)


@pytest.mark.parametrize(
    ("machines", "asked", "share"),
    [
        ([NODE, NODE], {}, Share(16, 12, 1)),
        ([NODE, NODE], {"gpus": 2}, Share(8, 24, 2)),
        ([NODE, NODE], {"workers": 3}, Share(3, 12, 1)),
        ([NODE, Machine(8, 0)], {"threads": 24}, Share(4, 24, 1)),
        ([NODE], {"on_gpus": False}, Share(1, 96, 0)),
        ([Machine(2, 0)], {"workers": 2}, Share(2, 1, 0)),
        ([Machine(4, 0), Machine(2, 0)], {}, Share(3, 2, 0)),
        ([Machine(4, 0), Machine(2, 0)], {"workers": 1}, Share(1, 4, 0)),
        ([Machine(4, 0), Machine(16, 0)], {"usual": 8}, Share(5, 4, 0)),
        ([Machine(16, 0)], {"usual": 8}, Share(2, 8, 0)),
        ([Machine(4, 0), Machine(2, 0)], {"threads": 1}, Share(6, 1, 0)),
    ],
)
def test_machines_are_shared_out(machines: Sequence[Machine], asked: dict[str, int], share: Share) -> None:
    assert share_out(machines, **asked) == share  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("machines", "asked", "said"),
    [
        ([Machine(2, 0)], {"on_gpus": True}, "1 worker of 1 core and 1 GPU each: the cluster has room for 0"),
        ([NODE], {"workers": 9, "threads": 4}, "9 workers of 4 cores and 1 GPU each: the cluster has room for 8"),
        ([Machine(96, 1), Machine(96, 1)], {"gpus": 2}, "has room for 0 (its machines: 96 cores, 1 GPUs; 96 cores"),
        ([Machine(2, 0)], {"workers": 3}, "3 workers of 1 core each: the cluster has room for 2"),
        ([Machine(2, 0)], {"gpus": 1}, "this replay runs on CPUs"),
        ([], {}, "its machines: nothing"),
    ],
)
def test_what_is_not_there_is_one_sentence_and_no_wait(
    machines: Sequence[Machine], asked: dict[str, int], said: str
) -> None:
    with pytest.raises(UserError) as refused:
        share_out(machines, **asked)  # type: ignore[arg-type]
    assert said in str(refused.value)


def test_no_share_takes_more_than_there_is() -> None:
    sizes = [Machine(cpus, gpus) for cpus, gpus in product((1, 3, 8), (0, 1, 4))]
    for pair, workers, threads in product(product(sizes, sizes), (None, 1, 2, 5), (None, 1, 2)):
        try:
            share = share_out(pair, workers=workers, threads=threads)
        except UserError:
            continue
        assert share.workers * share.threads <= sum(machine.cpus for machine in pair)
        assert share.workers * share.gpus <= sum(machine.gpus for machine in pair)
        assert (workers, threads) in (
            (None, None), (workers, None), (None, share.threads), (share.workers, share.threads)
        )  # fmt: skip


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"executor": "dask"}, "unknown executor 'dask' in --executor. Known: local, ray"),
        ({"workers": 2}, "--workers: only for --executor ray"),
        ({"gpus_per_worker": 2, "ray_address": "a:1"}, "--gpus-per-worker, --ray-address: only for --executor ray"),
        ({"executor": "ray", "workers": 0}, "--workers 0: give 1 or more"),
    ],
)
def test_an_executor_that_cannot_be_is_refused(asked: dict[str, object], said: str) -> None:
    with pytest.raises(UserError) as refused:
        Executing(**asked)  # type: ignore[arg-type]
    assert str(refused.value) == said


def test_ray_chooses_the_gpu_of_a_worker() -> None:
    assert [Executing("ray").on_gpus(device) for device in ("auto", "cpu", "cuda")] == [None, False, True]
    with pytest.raises(UserError, match="--device cuda:1: Ray gives every worker its GPUs"):
        Executing("ray").on_gpus("cuda:1")
    assert Executing().on_gpus("cuda:1") is None


def test_layers_spread_over_gpus_have_no_latency_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvmill.replay.executors.remote.machines", lambda: [NODE])
    where = Executing("ray", gpus_per_worker=4)
    quality = Asked(samples.load()[:1], "any", ["full"])
    assert share_for(quality, where) == Share(2, 48, 4)
    with pytest.raises(UserError, match="--gpus-per-worker 4 spreads the model's layers"):
        share_for(Asked(samples.load()[:1], "any", ["full"], measure="both"), where)


def test_where_ray_is_not_installed_one_line_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"pip install 'kvmill\[ray\]'"), connected():
        pass


@pytest.mark.parametrize("address", ["ray://head:10001", "head", ":6379", "127.0.0.1:1"])
def test_an_address_without_a_cluster_is_one_line(address: str) -> None:
    pytest.importorskip("ray", reason="Ray is not installed (pip install 'kvmill[ray]')")
    with pytest.raises(UserError, match="Ray cluster"), connected(address):
        pass


def test_a_worker_that_does_not_see_the_store_says_so(own_store: object) -> None:
    store = Store.open()
    reach = Reach.opened(store)
    assert reach.store().runs() == []
    reach.close()
    with pytest.raises(UserError, match="does not see the store"):
        reach.store()


def test_what_runs_alone_waits_for_no_worker_whose_machine_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    killed = list[str]()
    some = object.__new__(crew.Crew)
    some._ray, some._share = SimpleNamespace(kill=killed.append), Share(3, 1, 0)
    some._members = [crew._Member("a", None), crew._Member("b", "opens"), crew._Member("c", "opens")]
    monkeypatch.setattr(crew, "machines", lambda: [Machine(2, 0)])
    some._look_around(alone=False)
    assert killed == []
    for _ in range(2):  # those for whom there is room are waited for
        some._look_around(alone=True)
        assert killed == ["b"]
    assert [member.actor for member in some._members] == ["a", "c"]
    monkeypatch.setattr(crew, "machines", list)
    with pytest.raises(UserError, match="room for 0"):
        some._look_around(alone=True)


def test_tokens_of_killed_drivers_go_and_those_of_living_ones_stay(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    living, killed = Reach.opened(store), Reach.opened(store)
    for reach in (living, killed):
        os.utime(tmp_path / f".reach-{reach.token}", (0, 0))
    living.stay()  # it has finished a job
    opened = Reach.opened(store)
    assert {path.name for path in tmp_path.glob(".reach-*")} == {f".reach-{r.token}" for r in (living, opened)}
    assert living.store().runs() == []
    with pytest.raises(UserError, match="does not see the store"):
        killed.store()
