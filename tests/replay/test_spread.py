"""A model laid over several devices, as far as a machine without GPUs shows: what is asked for, rows through hooks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import dispatch_model
from replaying import POLICIES, rows, some
from tiny import save_tiny
from torch import Tensor

from kvmill.replay import asked as asking
from kvmill.replay import model as models
from kvmill.replay.asked import Asked, settle
from kvmill.replay.cells import Cells, jobs_of
from kvmill.replay.forward import Forward, Pass
from kvmill.replay.model import LoadedModel, load_model
from kvmill.traces.store import Store


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny(tmp_path_factory.mktemp("tiny-model")))


def stored(folder: Path, loaded: LoadedModel) -> tuple[Store, str]:
    """A run of one trajectory with a model as it is."""
    store = Store.open(folder)
    asked = Asked(some(1), loaded.name, POLICIES)
    settled = settle(asked, loaded)
    cells, run = Cells(asked, settled, loaded), store.begin("replay", {})
    for job in jobs_of(asked, settled.policies):
        run.add(cells.rows(job), key=job.key)
    run.finish()
    return store, run.id


def test_spread_asks_for_layers_on_all_gpus_and_room_on_the_first(tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Any]] = []
    right = models.AutoModelForCausalLM.from_pretrained

    def noted(reference: str, **given: Any) -> Any:
        seen.append(given)
        return right(reference, **{key: value for key, value in given.items() if key != "device_map"})

    monkeypatch.setattr(models.AutoModelForCausalLM, "from_pretrained", noted)
    moved: list[object] = []
    monkeypatch.setattr(torch.nn.Module, "to", lambda self, *place: moved.append(place) or self)
    asked = Asked(some(1), tiny, ["full"], device="cpu", dtype="float32", threads=1)
    asked.load(spread=True)
    assert seen[0]["device_map"] == "balanced_low_0"
    assert moved == [], "its layers stay where they were laid"
    asked.load()
    assert "device_map" not in seen[1]
    assert moved == [(torch.device("cpu"),)]
    assert asking.load_model is load_model


def test_layers_behind_hooks_give_the_same_rows(tiny: str, tmp_path: Path) -> None:
    """A layer on disk runs on the CPU through the very hooks that move what enters a layer on another GPU."""
    plain = load_model(tiny, device="cpu", dtype="float32", threads=1)
    here = stored(tmp_path / "a", plain)
    places = {"model.embed_tokens": "cpu", "model.norm": "cpu", "model.rotary_emb": "cpu", "lm_head": "cpu"}
    places |= {f"model.layers.{number}": "disk" if number == 1 else "cpu" for number in range(3)}
    again = load_model(tiny, device="cpu", dtype="float32", threads=1)
    laid = dispatch_model(again.module, places, main_device="cpu", offload_dir=str(tmp_path / "weights"))
    assert any(parameter.is_meta for parameter in laid.parameters()), "a layer is away"
    there = stored(tmp_path / "b", replace(again, module=laid))
    for table in ("cells", "turn_metrics", "probes", "kept"):
        assert rows(*here, table) == rows(*there, table)
    assert {cell["status"] for cell in here[0].query("select status from cells").to_pylist()} == {"ok"}


def test_attention_is_computed_where_the_caches_are(tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The meta device stands in for the model's own: it computes nothing, but tells where a tensor came."""
    forward = Forward(load_model(tiny, device="cpu", dtype="float32", threads=1))
    layer, query = forward.model.module.model.layers[0].self_attn, torch.ones(1, 6, 2, 8)
    places: list[str] = []

    class Here(Pass):
        def attend(self, layer: int, queries: Tensor, scaling: float) -> Tensor:
            places.append(queries.device.type)
            return query.transpose(1, 2)

    forward._pass = object.__new__(Here)
    monkeypatch.setattr(forward, "model", replace(forward.model, device=torch.device("meta")))
    said, _ = forward._attention(layer, query, query, query, None, scaling=1.0)
    assert (places, said.device) == (["meta"], query.device)
