"""Out of memory costs a cell, says its sizes and gives everything back; a long run does not grow."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from growing import short
from tiny import save_tiny, tiny_model, trajectory

from kvmill.replay.cache import Buffer, KvCache
from kvmill.replay.engine import replay
from kvmill.replay.fanout import run_replay
from kvmill.replay.forward import Forward
from kvmill.replay.memory import OutOfMemory, is_out_of_memory
from kvmill.replay.policies.registry import parse_policies
from kvmill.replay.policies.te_state import TokenEvictionState
from kvmill.replay.policies.truncate import Truncate
from kvmill.traces import samples
from kvmill.traces.store import Store

TE = "te(proxy=boundary,keep=0.2)"
ERRORS: dict[str, Callable[[], Exception]] = {
    "python": MemoryError,
    "cuda": lambda: torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    "cpu": lambda: RuntimeError(
        "[enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes."
    ),
}
every = pytest.mark.parametrize("kind", sorted(ERRORS))


class Allocator:
    """A machine with room for buffers of at most `rows` rows; remembers every buffer that it gave."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, kind: str, rows: int) -> None:
        self.given: list[weakref.ref[torch.Tensor]] = []
        right = KvCache._allocate

        def allocate(cache: KvCache, capacity: int) -> Buffer:
            if capacity > rows:
                raise ERRORS[kind]()
            buffer = right(cache, capacity)
            self.given += [weakref.ref(buffer.keys), weakref.ref(buffer.values)]
            return buffer

        monkeypatch.setattr(KvCache, "_allocate", allocate)

    def held_bytes(self) -> int:
        gc.collect()
        return sum(tensor.nbytes for ref in self.given if (tensor := ref()) is not None)


@every
def test_a_pass_that_does_not_fit_ends_the_replay_with_its_sizes_and_without_its_caches(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine, text = Allocator(monkeypatch, kind, 512), trajectory(turns=6)
    forward = Forward(tiny_model())
    with pytest.raises(OutOfMemory) as caught:
        replay(forward, text, parse_policies([TE, "random(keep=0.2)"]))
    said = str(caught.value)
    assert said.startswith("out of memory after ")
    assert f" of {text.tokens} tokens: 3 policies on 3 caches held " in said
    assert "replay fewer policies at once" in said
    del caught
    assert machine.given
    assert machine.held_bytes() == 0


@every
def test_a_policys_own_shortage_costs_its_own_cell(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def short(*_: object) -> None:
        raise ERRORS[kind]()

    monkeypatch.setattr(TokenEvictionState, "close", short)
    runs = replay(Forward(tiny_model()), trajectory(turns=3), parse_policies([TE, "random(keep=0.2)"]))
    assert [run.error is None for run in runs] == [True, False, True]
    assert runs[1].error is not None
    assert runs[1].error.startswith("out of memory with ")
    assert "MiB of KV held" in runs[1].error


def test_a_policy_that_cannot_feed_its_rest_leaves_the_others_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    forward, right = Forward(tiny_model()), Forward.feed
    text = trajectory(turns=4, users=False)

    def feed(self: Forward, lanes: list, ids: list, **more: object) -> torch.Tensor:
        if not more:  # what `truncate` feeds alone after its cut; all else is watched or scored
            raise ERRORS["cpu"]()
        return right(self, lanes, ids, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(Forward, "feed", feed)
    runs = replay(forward, text, parse_policies([TE, "truncate(keep=0.2)"]))
    broken = {type(run.policy): run.error for run in runs}
    assert "out of memory" in str(broken[Truncate])
    assert [run.error for run in runs if not isinstance(run.policy, Truncate)] == [None, None]


def test_other_errors_are_not_taken_for_a_shortage() -> None:
    assert all(is_out_of_memory(make()) for make in ERRORS.values())
    assert not is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    assert not is_out_of_memory(ValueError("can't allocate memory"))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny(tmp_path_factory.mktemp("tiny-model")))


def test_the_run_goes_on_after_a_cell_that_does_not_fit(
    tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Allocator(monkeypatch, "cuda", 512)
    long = replace(samples.load()[1], probes=(), turns=samples.load()[1].turns[:2])
    store, runs = Store.open(tmp_path), [short(1)[0], long, short(2)[1]]
    run_replay(store=store, trajectories=runs, model=model, policies=[TE], dtype="float32", threads=1, progress=False)
    cells = store.query("select trajectory_id, status, error from cells order by trajectory_id").to_pylist()
    status = {cell["trajectory_id"]: cell["status"] for cell in cells}
    assert status == {long.id: "failed", "run-000": "ok", "run-001": "ok"}
    assert {cell["error"].split(" after ")[0] for cell in cells if cell["error"]} == {"out of memory"}
    assert machine.held_bytes() == 0


def test_a_run_of_a_hundred_trajectories_does_not_grow(tmp_path: Path, model: str) -> None:
    """What is held after 100 trajectories is what was held after 20: tensors to the byte, the process within noise.

    In a process of its own: what other tests have left in this one comes and goes meanwhile.
    """
    command = [sys.executable, "-m", "growing", model, str(tmp_path)]
    paths = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    tensors, resident = found["tensors"], found["resident"]
    assert len(resident) == 100
    assert len(tensors) == 5
    assert tensors[-1] == tensors[0]
    assert resident[99] - resident[19] < 12 * 2**20
