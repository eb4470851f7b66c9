"""From the name of a model to its geometry."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ..errors import UserError, unknown
from .catalogue import ALIASES, CATALOGUE
from .geometry import Geometry
from .hf_config import HUB_ID, cached_config, read_config


def find_geometry(name: str) -> Geometry:
    """The geometry of a catalogue name, of a `config.json` (a file, or a folder that holds one), or of a hub id whose
    files are in the local Hugging Face cache.

    A hub id that ends in a catalogue name is that model. Nothing is fetched. UserError on an unknown name or an
    architecture that is not understood.
    """
    path = Path(name).expanduser()
    if path.is_dir() and (path / "config.json").is_file():
        return read_config(path / "config.json")
    if path.is_file():
        return read_config(path)
    key = re.sub(r"-(instruct|it|base|chat)$", "", name.strip().lower().rsplit("/", 1)[-1])
    key = ALIASES.get(key, key)
    if key in CATALOGUE:
        return CATALOGUE[key]
    if path.is_dir():
        raise UserError(f"model folder {name}: no config.json in it")
    if name.endswith(".json"):
        raise UserError(f"model configuration {name}: no such file; give a config.json or a catalogue name")
    if HUB_ID.match(name):
        cached = cached_config(name)
        if cached is None:
            raise UserError(
                f"model {name}: no config.json of it in the local Hugging Face cache, and none is fetched unasked: "
                f"run `hf download {name} config.json`, or give a config.json or one of: {', '.join(sorted(CATALOGUE))}"
            )
        return read_config(cached, name)
    raise unknown("model geometry", name, CATALOGUE)


def same_model(name: str | None, geometry: Geometry) -> bool:
    """Whether what was measured with `name` was measured with the model of this geometry."""
    if name is None:
        return False
    try:
        return find_geometry(name).name == geometry.name
    except UserError:
        return name.lower() == geometry.name


def geometry_rows() -> list[dict[str, Any]]:
    """One row per catalogue model: parameters, cache bytes per token, constant state, weights, positions, notes."""
    return [
        {
            "model": name,
            "parameters": shape.parameters,
            "active_parameters": shape.active_parameters,
            "layers": shape.layers,
            "compacted_layers": shape.full_layers,
            "kv_bytes_per_token": shape.row_bytes("bf16"),
            "state_bytes": shape.state_bytes,
            "weight_bytes": shape.weight_bytes("bf16"),
            "max_positions": shape.max_positions,
            "notes": list(shape.notes),
        }
        for name, shape in sorted(CATALOGUE.items())
    ]
