"""Replays on a real local cluster of two workers: the rows are those of this process, whatever dies on the way."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from replaying import POLICIES, TABLES, replay, rows, some
from tiny import save_tiny

from kvmill.errors import UserError
from kvmill.replay.cells import Job
from kvmill.replay.executors import remote, worker
from kvmill.replay.executors.crew import Crew, Lost
from kvmill.replay.executors.shares import Share
from kvmill.simulator.answers import plan_named
from kvmill.traces.run import Run
from kvmill.traces.store import Store

pytest.importorskip("ray", reason="Ray is not installed (pip install 'kvmill[ray]')")

TWO = Share(workers=2, threads=1, gpus=0)
RAY = {"executor": "ray", "workers": 2}
ONE = {"executor": "ray", "workers": 1}  # a worker takes seconds to begin


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    """One cluster for all tests of this file; runs inside use it and leave it open."""
    from kvmill.replay.executors.cluster import started

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kvmill.replay.executors.cluster.cores", lambda: 2)
        with started():
            yield


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny(tmp_path_factory.mktemp("tiny-model")))


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory, model: str) -> tuple[Store, str]:
    """The same run in this process, to compare with."""
    store = Store.open(tmp_path_factory.mktemp("local"))
    return store, replay(store, model, count=5)


def workers_at_work() -> list[psutil.Process]:
    """Processes of workers of ours. Ray writes what they do into their titles."""
    found = []
    for each in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # a zombie is none either
            found += [each] if any("Host" in word for word in each.cmdline()) else []
    return found


def workers_that_stay() -> list[psutil.Process]:
    """Those that have not ended a while after they were told to: a process takes its time to go."""
    _, alive = psutil.wait_procs(workers_at_work(), timeout=20)
    return alive


def same_rows(one: tuple[Store, str], other: tuple[Store, str]) -> None:
    for table in TABLES:
        assert rows(*one, table) == rows(*other, table)


def test_a_run_begun_here_goes_on_on_ray_and_dead_workers_cost_their_cells_at_most(
    tmp_path: Path, model: str, local: tuple[Store, str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
) -> None:
    """One worker is killed from outside: nothing is lost. One trajectory kills two: its cells fail, and no other."""
    store, add, adopt, killed = Store.open(tmp_path), Run.add, Run.adopt, list[int]()
    deadly = some(5)[3].id

    class Dies(worker.Replayer):  # a local class goes to the workers by value
        def segment(self, job: Job, *more: Any) -> Any:
            if job.trajectory.id == deadly:
                os._exit(3)
            return super().segment(job, *more)

    def stop(self: Run, *args: Any, **more: Any) -> None:
        add(self, *args, **more)
        raise KeyboardInterrupt

    def and_kill(self: Run, *args: Any, **more: Any) -> None:
        adopt(self, *args, **more)
        if not killed:
            victim = workers_at_work()[0]
            killed.append(victim.pid)
            victim.kill()

    with monkeypatch.context() as patch:
        patch.setattr(Run, "add", stop)
        with pytest.raises(KeyboardInterrupt):
            replay(store, model, count=5)
    (begun,) = store.runs("replay")
    assert (len(begun.keys), begun.config["executor"]) == (1, "local")
    monkeypatch.setattr(Run, "adopt", and_kill)
    monkeypatch.setattr(remote, "Replayer", Dies)
    run = replay(store, model, count=5, resume=begun.run_id, **RAY)
    assert killed
    for table in TABLES:
        right = [row for row in rows(*local, table) if json.loads(row).get("trajectory_id") != deadly]
        assert [row for row in rows(store, run, table) if json.loads(row).get("trajectory_id") != deadly] == right
    failed, would = (
        where.query("select * from cells where trajectory_id = ? order by policy", [deadly]).to_pylist()
        for where in (store, local[0])
    )
    assert {(cell["status"], cell["error"].partition(" (")[0]) for cell in failed} == {
        ("failed", "the worker process died at it twice")
    }
    same = ("cell_id", "policy", "family", "source", "seed", "model", "dtype", "device", "threads", "mode")
    assert [[cell[key] for key in same] for cell in failed] == [[cell[key] for key in same] for cell in would]
    info = store.info(run)
    assert info.state == "complete"
    assert (info.config["executor"], info.config["workers"]) == ("ray", 2)
    assert info.config["worker"]["dtype"] == "float32"
    assert len(info.config["worker"]["processor"]) > 2
    assert store.check() == []
    assert [path.name for path in tmp_path.iterdir()] == ["runs"], "the token is gone"
    assert workers_that_stay() == []
    assert capfd.readouterr().out == "", "answers go to stdout, what Ray tells does not"


def test_latency_cells_of_a_worker_are_those_of_this_process(tmp_path: Path, model: str) -> None:
    """The same cells under the same ids, timed; their quality rows are the same to the last digit."""
    both: dict[str, object] = {"count": 1, "measure": "both", "latency_repeats": 1}
    here, there = Store.open(tmp_path / "here"), Store.open(tmp_path / "there")
    runs = (here, replay(here, model, **both)), (there, replay(there, model, **both, **ONE))  # type: ignore[arg-type]
    cells = [store.open_run(run).read("cells").to_pylist() for store, run in runs]
    timed = [{cell["cell_id"]: cell for cell in found if cell["measure"] == "latency"} for found in cells]
    assert timed[0].keys() == timed[1].keys()
    assert len(timed[1]) == 1 + len(POLICIES)
    assert all(cell["status"] == "ok" and cell["ttft_s"] > 0 and cell["repeats"] == 1 for cell in timed[1].values())
    assert rows(*runs[0], "kept") == rows(*runs[1], "kept")


def test_a_closed_run_interrupted_on_ray_goes_on_here(
    tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = {"mode": "closed", "max_turns": 3, "max_action_tokens": 8, "seed_turns": 1}
    store, straight, adopt, listed = Store.open(tmp_path / "a"), Store.open(tmp_path / "b"), Run.adopt, list[str]()
    whole = replay(straight, model, count=3, **closed)

    def stop(self: Run, entries: Any, *, key: str) -> None:
        if listed:
            raise KeyboardInterrupt  # what this worker and the next have written is never listed
        adopt(self, entries, key=key)
        listed.append(key)

    with monkeypatch.context() as patch:
        patch.setattr(Run, "adopt", stop)
        with pytest.raises(KeyboardInterrupt):
            replay(store, model, count=3, **closed, **ONE)
    (info,) = store.runs("replay")
    assert (info.state, list(info.keys)) == ("incomplete", listed)
    assert workers_that_stay() == []
    assert store.check() == []
    assert replay(store, model, count=3, resume=info.run_id, **closed) == info.run_id
    assert store.info(info.run_id).config["executor"] == "local"
    same_rows((store, info.run_id), (straight, whole))


def test_workers_that_differ_are_refused() -> None:
    team = object.__new__(remote.Remote)
    team._first = None
    here = {**remote.manifest.versions(), "dtype": "float32", "processor": "A"}
    team._welcome(here)
    with pytest.raises(UserError, match="a worker's processor is B, not A"):
        team._welcome({**here, "processor": "B"})
    with pytest.raises(UserError, match=r"a worker's kvmill is 0\.0\.0, not"):
        team._welcome({**here, "kvmill": "0.0.0"})


def test_jobs_of_a_crew_run_beside_each_other_or_one_at_a_time_on_a_machine(tmp_path: Path) -> None:
    class Looks:
        def __init__(self) -> None:
            try:
                (tmp_path / "first").touch(exist_ok=False)
            except FileExistsError:
                time.sleep(1)
                (tmp_path / "all").touch()

        def look(self, seconds: float) -> tuple[int, bool, bool]:
            time.sleep(seconds)
            return os.getpid(), importlib.util.find_spec("kernels") is None, (tmp_path / "all").exists()

    crew = Crew(TWO, Looks)
    try:
        alone = [found for _, found in crew.stream(range(3), "look", arguments=lambda _: (0.0,), alone=True)]
        together = [found for _, found in crew.stream(range(8), "look", arguments=lambda _: (0.2,))]
    finally:
        crew.close()
    assert len({pid for pid, _, _ in together}) == 2
    assert len({pid for pid, _, _ in alone}) == 1
    assert all(quiet for _, _, quiet in alone), "nothing is measured while another worker loads its model"
    assert all(hidden for _, hidden, _ in together), "our folder `kernels` is no package of that name in a worker"


def test_only_the_job_that_kills_is_blamed() -> None:
    class Fragile:
        def take(self, job: int) -> int:
            time.sleep(0.05)
            if job in (2, 5):
                os._exit(1)
            return job * job

    crew = Crew(TWO, Fragile)
    try:
        found = dict(crew.stream(range(9), "take", arguments=lambda job: (job,)))
    finally:
        crew.close()
    lost = {job for job, outcome in found.items() if isinstance(outcome, Lost)}
    assert lost == {2, 5}
    assert {job: found[job] for job in found if job not in lost} == {j: j * j for j in range(9) if j not in lost}


def test_what_a_worker_raises_is_raised_and_workers_that_cannot_start_are_given_up() -> None:
    class Raises:
        def fail(self, job: int) -> None:
            raise {0: UserError("say this"), 1: OSError(28, "No space left on device", "x"), 2: KeyError("a bug")}[job]

    class Refuses:
        def __init__(self) -> None:
            raise UserError("no such model")

    class Stillborn:
        def __init__(self) -> None:
            os._exit(1)

    for job, kind in ((0, UserError), (1, OSError), (2, KeyError)):
        crew = Crew(Share(1, 1, 0), Raises)
        with pytest.raises(kind) as raised:
            list(crew.stream([job], "fail", arguments=lambda job: (job,)))
        crew.close()
        assert job != 1 or raised.value.errno == 28
    for kind, said in ((Refuses, "^no such model$"), (Stillborn, "3 workers died while they started")):
        crew = Crew(Share(1, 1, 0), kind)
        with pytest.raises(UserError, match=said):
            list(crew.stream([0], "any", arguments=lambda job: ()))
        crew.close()


def test_a_plan_on_a_cluster_is_the_plan_of_this_process(tmp_path: Path) -> None:
    asked = {"slo": {"ttft_p95": 2, "tpot_p95": 0.05}, "agents": 30, "replications": 2, "turns": 150, "save": False}
    asked |= {"store": tmp_path, "policies": ["te(proxy=assistant,delay=1,keep=0.2)"], "sensitivity": False}
    here, there = (
        plan_named("samples", "qwen3.5-27b", "h200", **asked, **where)
        for where in ({}, {"executor": "ray", "workers": 2})
    )
    assert here == there
